"""Whatever comes from outside is read right or refused with one line.

First single inputs that were once accepted or ended in a crash, then mutated ones: their corpus and
readers are in `hostile_inputs.py`, which runs in its own process with limits of memory and time.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import SUPPORT, TIMEOUT_S
from paceline.cli.commands import main
from paceline.cli.tables import print_table
from paceline.experiment.user_code import code_digest
from paceline.formats.check import check
from paceline.formats.image_folder import files_digest
from paceline.formats.tfrecord import index, record
from paceline.formats.tfrecord.record import framed
from paceline.formats.tfrecord.shards import find_splits, read_labels
from paceline.results.image_bytes import find_fault
from paceline.run_folder.folder import RunFolder
from paceline.storage.array_files import read_npy
from paceline.storage.files import sealed
from report_runs import make_run, report
from small_images import encode


@pytest.mark.parametrize("shape", [(9_999_999_999, 3), (2, 2), (-1, -6), (2**70,)])
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path: Path, shape: Any) -> None:
    with open(tmp_path / "a.npy", "wb") as file:
        facts = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, facts)
        file.write(bytes(6))
    with pytest.raises(ValueError, match=r"6 follow|the shape"):
        read_npy(tmp_path / "a.npy")


def test_a_class_name_is_one_line_whatever_it_contains(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"caf\xe9\r\nnext\xc2\x85line\n\xe2\x80\xa8third\n")
    assert read_labels(str(tmp_path)) == ("caf\ufffd", "next\x85line", "third")
    run = make_run(tmp_path / "run", classes=("a\udce9", "b\x85c", "\ud800"), records=6)
    page = report(run, out=tmp_path / "page.html")
    assert "a\\udce9" in page


def test_a_label_of_a_trillion_is_a_problem_and_not_that_many_classes(tmp_path: Path) -> None:
    features = {"image/encoded": encode(np.zeros((2, 2, 3), np.uint8)), "image/class/label": 2**40}
    for split in ("train", "validation"):
        content = framed(record.encode(features))
        (tmp_path / f"{split}-00000-of-00001").write_bytes(content)
    found = check(tmp_path, processes=1)
    assert any("the highest label is 1099511627776" in line for line in found.problems)
    assert len(found.table()) < 20


def test_an_eps_file_never_starts_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    def started(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", started)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    assert find_fault(eps) == "is not an image"


@pytest.mark.parametrize("command", ["eval", "predict", "export"])
def test_code_that_a_run_names_is_not_run_without_consent(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path('it ran').touch()\n")
    config = RunFolder(run).config()
    config["experiment"]["model"]["build"] = f"{tmp_path}/evil.py:build"
    (run / "config.json").write_text(json.dumps(sealed(config)))
    image = tmp_path / "a.png"
    image.touch()
    words = {
        "eval": [],
        "predict": [str(image)],
        "export": [str(tmp_path / "weights.safetensors"), "--to", "safetensors"],
    }
    assert main([command, str(run), *words[command]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "evil.py:build" in line
    assert "--trust-code" in line
    assert not Path("it ran").exists()


def test_an_error_is_one_line_without_control_characters_whatever_it_quotes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "smoke", "--see\nd\x1b[31m\x85é", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: unknown flag --see\\nd\\x1b[31m\\x85é ")


def test_a_table_shows_no_control_characters_and_no_markup_of_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("", "runs/[red]\x1b[31m<"), [("a\x07", "[b]\x1b]0;title")], whole=True)
    shown = capsys.readouterr().out.split()
    assert shown == [r"runs/[red]\x1b[31m", r"a\x07", r"[b]\x1b]0;title"]


def test_the_digest_of_data_changes_with_the_content_of_an_example(tmp_path: Path) -> None:
    """Sizes, names and labels stay the same."""

    def write(pixel: int) -> tuple[str, str]:
        (tmp_path / "one.png").write_bytes(bytes([pixel]))
        content = framed(record.encode({"image/encoded": bytes([pixel]), "image/class/label": 1}))
        for name in ("train-00000-of-00001", "validation-00000-of-00001"):
            (tmp_path / name).write_bytes(content)
        shards = find_splits(str(tmp_path))["train"]
        parts = index.load_index(str(tmp_path), shards, ("image/encoded", "image/class/label"))
        return index.records_digest(parts), files_digest(tmp_path, [("one.png", 1)])

    first, again, other = write(1), write(1), write(2)
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


def test_the_digest_of_code_changes_with_the_code_and_not_with_comments(tmp_path: Path) -> None:
    digests = []
    for number, text in enumerate(("x = 1", "x = 1  # why", "x = 2")):
        file = tmp_path / f"own{number}.py"
        file.write_text(f"{text}\ndef build(data): return x\n")
        digests.append(code_digest(f"{file}:build"))
    assert digests[0] == digests[1] != digests[2]
    assert code_digest("os:getcwd") == ""


def test_names_of_files_that_are_not_utf8_can_be_printed(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    command = [sys.executable, "-m", "paceline", "data", "check", folder]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2, done
    assert b"Traceback" not in done.stderr
    assert b"caf\\udce9" in done.stderr


def run_inputs(seed: int, count: int, timeout_s: float) -> int:
    command = [sys.executable, str(SUPPORT / "hostile_inputs.py"), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = re.search(r"^(\d+) inputs, 0 failures", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return int(found[1])


@pytest.mark.slow
def test_some_hundred_mutated_inputs_are_read_right_or_refused() -> None:
    assert run_inputs(20, 60, timeout_s=TIMEOUT_S) >= 500


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_many_thousand_mutated_inputs_are_read_right_or_refused() -> None:
    assert run_inputs(16, 3_000, timeout_s=1400) >= 25_000
