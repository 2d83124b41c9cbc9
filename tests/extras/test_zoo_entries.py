"""The entries that come with Paceline: each loads, has the accuracy of its row, and is made again
with the same digest."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.images import find_cifar10
from benchmarks.results import read_finished
from PIL import Image

import paceline
from in_process import paceline_here
from paceline.extras.zoo import entries_here, fetch_entry, find_row, list_zoo
from paceline.kernels.library import ARITHMETIC

ROOT = Path(__file__).parents[2]
PACKAGED = ("cifar10-resnet20", "shapes-resnet8")
SHORTER = tuple(
    f"cifar10-{each}-epochs"
    for each in (
        *("speedrun-2", "speedrun-4", "speedrun-6", "speedrun-8"),
        *("resnet20-10", "resnet20-weights-10", "resnet20-20", "resnet56-20"),
    )
)
ENTRIES = (*PACKAGED, "cifar10-speedrun", *SHORTER, "cifar10-resnet56")
MOST_BYTES = 5_000_000
"""Of the entries in the wheel."""


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All entries in the cache, fetched from archives that the repository's history gave."""
    out = tmp_path / "archives"
    command = [sys.executable, "-m", "benchmarks.pack_zoo", str(out)]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "not in this clone's history" in packed.stderr:
        pytest.skip("this clone's history has no zoo")
    assert packed.returncode == 0, packed
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    for name in (*ENTRIES[2:3], *SHORTER, *ENTRIES[-1:]):
        fetch_entry(name, str(out))
    return out


def data_flags(name: str) -> tuple[str, ...]:
    if not name.startswith("cifar10"):
        return ()
    if not (folder := find_cifar10()):
        pytest.skip("CIFAR-10 is not on this machine; PACELINE_CIFAR10 names its folder")
    return ("--data.dir", str(folder))


def test_the_list_has_all_entries_and_the_wheel_the_small_ones() -> None:
    assert {row.name for row in list_zoo()} == set(ENTRIES)
    assert all(0.1e6 < row.bytes < 10e6 for row in list_zoo())
    package = ROOT / "src" / "paceline" / "zoo"
    assert {path.parent.name for path in package.glob("*/zoo.json")} == set(PACKAGED)
    assert {path.parent.name for path in package.glob("*/MODEL_CARD.md")} == set(PACKAGED)
    assert sum(path.stat().st_size for path in package.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.long
def test_every_entry_is_fetched_from_an_archive_that_the_history_gives(archives: Path) -> None:
    assert set(ENTRIES) <= entries_here().keys()
    assert len(list(archives.iterdir())) == len(ENTRIES) - len(PACKAGED)
    assert paceline.load("zoo:cifar10-speedrun").output_shape == (None, 10)


def test_each_row_of_the_results_has_its_weights_in_the_zoo() -> None:
    """Those of its first seed, or those of an earlier run with an older arithmetic."""
    entries = {row.command.removesuffix(" --data.dir data"): row for row in list_zoo()}
    for row, (run, *_) in read_finished().items():
        if row.name != "resnet20-10-async":  # its digest is different in each run
            entry = entries[f"paceline train {' '.join(row.flags)}"]
            assert entry.arithmetic < run.arithmetic or entry.state_sha256 == run.digest


@pytest.mark.parametrize("name", PACKAGED)
def test_an_entry_loads_as_a_keras_model_and_predicts_a_file(name: str, tmp_path: Path) -> None:
    model = paceline.load(f"zoo:{name}")
    assert model.output_shape == (None, 10)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    ended = paceline_here("predict", f"zoo:{name}", "red.png", "--json", cwd=tmp_path)
    assert ended.code == 0, ended
    assert "red.png" in ended.out


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.long if each.startswith("cifar10") else ())
        for each in PACKAGED
    ],
)
def test_an_entry_has_the_accuracy_of_its_row(name: str, tmp_path: Path) -> None:
    row = find_row(name)
    ended = paceline_here("eval", f"zoo:{name}", "--json", *data_flags(name), cwd=tmp_path)
    assert ended.code == 0, ended
    found = json.loads(ended.out.splitlines()[-1])["accuracy"]
    assert found == pytest.approx(row.test_accuracy, abs=5e-4)  # another CPU rounds otherwise


@pytest.mark.parametrize("name", PACKAGED)
def test_the_first_steps_of_an_entry_have_the_digest_of_its_row(name: str, tmp_path: Path) -> None:
    """One that an older arithmetic made is refused, with the reason."""
    row = find_row(name)
    if row.arithmetic != ARITHMETIC:
        ended = paceline_here("reproduce", name, cwd=tmp_path)
        assert ended.code == 2
        assert f"was trained with version {row.arithmetic} of the arithmetic" in ended.err
        return
    flags = ("--steps", str(row.first_steps), *data_flags(name))
    ended = paceline_here("reproduce", name, *flags, cwd=tmp_path)
    assert "s: equal" in ended.out, ended
