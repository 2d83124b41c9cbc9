"""The rules of the layout: who imports what, and how quickly the program answers."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paceline

SOURCE = Path(paceline.__file__).parent
HEAVY = ("tensorflow", "keras", "ray", "pyspark", "torch")
DRIVER_SIDE = [
    "cli.commands",
    "cli.results",
    "cli.machine",
    "cli.completion",
    "cli.runs",
    "cli.train",
    "cli.data",
    "cli.parse",
    "results.in_worker",
    "results.predict",
    "results.predictor",
    "results.evaluate",
    "results.export",
    "results.report",
    "run_folder.listing",
    "run_folder.folder",
    "machine.doctor",
    "machine.bench",
    "config.experiment",
    "config.recipes",
    "config.schedule",
    "config.plan",
    "config.job",
    "config.plugins",
    "places",
    "places.local",
    "places.spark.place",
    "places.spark.session",
    "places.ray",
    "errors",
    "data",
]


def imported_by(statement):
    """Which heavy libraries, and which parts of Paceline, a fresh process has loaded after `statement`."""
    program = f"import sys\n{statement}\nprint(*(name for name in sys.modules if name.split('.')[0] in {(*HEAVY, 'paceline')!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", DRIVER_SIDE)
def test_the_drivers_side_imports_nothing_heavy(module):
    loaded = imported_by(f"import paceline.{module}")
    assert f"paceline.{module}" in loaded
    assert not loaded & set(HEAVY)


def test_the_package_itself_imports_nothing_heavy():
    assert not imported_by("import paceline") & set(HEAVY)


def test_the_loop_imports_neither_tensorflow_nor_data_nor_models():
    loaded = imported_by("import paceline.worker.loop")
    assert "paceline.worker.loop" in loaded
    assert not loaded & {
        *HEAVY,
        "paceline.data",
        "paceline.models",
        "paceline.core.flat",
        "paceline.engines",
    }


def imports_of(file):
    """Absolute names of everything that a file imports anywhere, in functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


SPARK = {
    f"places/spark/{part}.py" for part in ("place", "session", "slots", "stage", "task", "jobs")
} | {"spark.py"}


@pytest.mark.parametrize("library", ["ray", "pyspark"])
def test_a_places_library_is_imported_only_in_its_own_files(library):
    own = {"ray": {"places/ray.py", "engines/object_store/engine.py"}, "pyspark": SPARK}[library]
    users = {
        str(f.relative_to(SOURCE))
        for f in SOURCE.rglob("*.py")
        for name in imports_of(f)
        if name.split(".")[0] == library
    }
    assert users <= own


def test_the_core_knows_nothing_of_places_and_run_folders():
    for file in [
        "core/replica.py",
        "core/tree.py",
        "core/update.py",
        "core/flat.py",
        "data/order.py",
        "data/augment.py",
    ]:
        names = set(imports_of(SOURCE / file))
        assert names, file
        assert not {
            n
            for n in names
            if n.startswith(
                (
                    "paceline.places",
                    "paceline.config.job",
                    "paceline.run_folder.folder",
                    "paceline.worker",
                )
            )
        }, file


def test_there_is_no_drawer_for_odds_and_ends():
    assert not [
        f for f in SOURCE.rglob("*.py") if f.stem in ("utils", "util", "helpers", "common", "misc")
    ]


def test_help_answers_within_half_a_second():
    """The best of five, by the processor's time for it, so that a busy machine does not matter."""
    times = []
    for _ in range(5):
        program = (
            "import time, sys; from paceline.cli.commands import main; code = main(['--help']); "
            "print(time.process_time()); sys.exit(code)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        assert "paceline train" in done.stdout
        times.append(float(done.stdout.split()[-1]))
    assert min(times) < 0.5


def test_help_of_train_names_the_flags_and_loads_no_tensorflow():
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "train", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {"--model.depth", "--global-batch-size", "--run-dir"} <= set(
        done.stdout.replace(",", " ").split()
    )
    assert time.monotonic() - began < 30
