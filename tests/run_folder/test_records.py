"""Records by step: what is appended is read, and damage is never shown."""

import json
from pathlib import Path

import pytest

from paceline.run_folder.records import RecordFile
from paceline.storage.files import sealed


@pytest.fixture
def metrics(tmp_path: Path) -> RecordFile:
    return RecordFile(tmp_path / "metrics.jsonl")


def steps(metrics: RecordFile) -> list[int]:
    return [record["step"] for record in metrics.read()]


def test_metrics_are_read_as_appended(metrics: RecordFile) -> None:
    assert metrics.read() == []
    records = [{"step": step, "loss": 1 / step} for step in (1, 2, 3)]
    for record in records:
        metrics.append(record)
    assert metrics.read() == records


def test_resuming_removes_metrics_after_its_step_and_a_half_written_line(
    metrics: RecordFile,
) -> None:
    for step in (10, 20, 30):
        metrics.append({"step": step})
    with open(metrics.path, "a") as file:
        file.write('{"step": 4')
    assert steps(metrics) == [10, 20, 30]
    assert metrics.num_damaged() == 0, "a line that is being written is not damaged"
    metrics.truncate(20)
    metrics.append({"step": 30})
    lines = metrics.path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30]


def test_resuming_after_a_line_without_its_end_starts_a_new_line(metrics: RecordFile) -> None:
    metrics.path.write_text(json.dumps(sealed({"step": 10})))
    metrics.truncate(10)
    metrics.append({"step": 20})
    assert steps(metrics) == [10, 20]


def test_one_flipped_bit_in_a_record_is_never_shown(metrics: RecordFile) -> None:
    records = [{"step": step, "loss": step / 7} for step in (1, 2, 3)]
    for record in records:
        metrics.append(record)
    complete = metrics.path.read_bytes()
    second = complete.index(b"\n") + 1
    for bit in range(8 * second, 8 * complete.index(b"\n", second)):
        content = bytearray(complete)
        content[bit // 8] ^= 1 << bit % 8
        metrics.path.write_bytes(content)
        assert metrics.read() == [records[0], records[2]], bit
        assert metrics.num_damaged() in (1, 2)  # 2: the flip made a new line


@pytest.mark.parametrize(
    "line", ["[]", "3", "{}", '{"step": 1}', json.dumps(sealed({"step": -1})), "[" * 100_000]
)
def test_a_line_that_is_not_a_record_is_damaged(metrics: RecordFile, line: str) -> None:
    metrics.path.write_text(f"{line}\n")
    assert (metrics.read(), metrics.num_damaged()) == ([], 1)


def test_a_torn_last_line_does_not_swallow_the_next_record(tmp_path: Path) -> None:
    starts = RecordFile(tmp_path / "starts.jsonl")
    starts.append({"step": 0})
    with open(starts.path, "a") as file:
        file.write('{"step": 5, "che')
    starts.append({"step": 7})
    starts.append({"step": 9})
    assert [record["step"] for record in starts.read()] == [0, 7, 9]
    assert starts.num_damaged() == 1
