"""Run folders of earlier releases: every later version reads, resumes and verifies them.

`releases/VERSION` is what `paceline train smoke` of that release wrote, without logs and events.
Never change one; add one for each release that changes a format.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

import paceline
from helpers import result_of
from in_process import paceline_here, workers_here
from paceline.experiment.fields import Json
from paceline.kernels.library import ARITHMETIC
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import FORMAT

RELEASES = sorted((Path(__file__).parent / "releases").iterdir())
each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


@pytest.fixture
def run(release: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release, tmp_path / "run"))


def arithmetic_of(run: Path) -> int:
    return int(re.findall(r"arithmetic (\d+)", result_of(run)["bits"])[0])


@each_release
def test_a_run_of_an_earlier_release_is_listed_evaluated_and_reported(
    run: Path, tmp_path: Path
) -> None:
    (row,) = paceline.runs(tmp_path)
    assert (row.state, row.step) == ("finished", 24)
    ended = paceline_here("eval", "run", "--json", cwd=tmp_path)
    assert ended.code == 0, ended
    assert json.loads(ended.out)["accuracy"] == pytest.approx(result_of(run)["test_accuracy"])
    ended = paceline_here("report", "run", "-o", "report.html", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, ""), ended


@each_release
def test_a_run_of_an_earlier_release_is_verified(run: Path, tmp_path: Path) -> None:
    if arithmetic_of(run) != ARITHMETIC:
        pytest.skip("a later arithmetic cannot compare its digests")
    ended = paceline_here("verify", "run", "--all", cwd=tmp_path)
    assert ended.code == 0, ended
    assert "checked 100 % of 24 steps" in ended.out


@each_release
def test_a_run_of_an_earlier_release_is_resumed(run: Path, tmp_path: Path) -> None:
    wanted = result_of(run)["state_sha256"]
    for name in ("result.json", "evaluation.npz", "checkpoints/step-00000024.safetensors"):
        (run / name).unlink()
    with workers_here():
        result = paceline.train(existing_run(run).experiment(), run_dir=run)
    assert [json.loads(line)["step"] for line in (run / "starts.jsonl").open()] == [0, 20]
    if arithmetic_of(run) == ARITHMETIC:
        assert result.state_sha256 == wanted


def names_of(value: object, prefix: str = "") -> set[str]:
    """The names of all fields of an object of JSON."""
    if not isinstance(value, dict):
        return {prefix}
    return {prefix}.union(*(names_of(each, f"{prefix}/{name}") for name, each in value.items()))


@pytest.mark.slow
def test_a_format_only_grows_within_its_number(uninterrupted: Path) -> None:
    """A later version may add fields and files. Without one, a higher number is due."""
    newest = RELEASES[-1]
    for name in ("config.json", "result.json"):
        old, new = (json.loads((run / name).read_text()) for run in (newest, uninterrupted))
        assert old.get("format", FORMAT) == FORMAT, "add the first release with the new format"
        assert names_of(old) - names_of(new) == set()
    for name in ("metrics.jsonl", "starts.jsonl", "chain.jsonl"):
        old, new = (fields_of(run / name) for run in (newest, uninterrupted))
        assert old - new == set()
    old, new = (tensors_of(run) for run in (newest, uninterrupted))
    assert old == new


def fields_of(file: Path) -> set[str]:
    rows: list[Json] = [json.loads(line) for line in file.open()]
    return set[str]().union(*map(names_of, rows))


def tensors_of(run: Path) -> dict[str, list[int]]:
    with safe_open(run / "checkpoints" / "step-00000024.safetensors", "np") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
