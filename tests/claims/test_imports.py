"""What a process loads when it imports a module, and how quickly the program answers.

Which folder may import which is in pyproject.toml, for `lint-imports`. That reads the source and
cannot see what is loaded at run time, because TensorFlow is imported inside functions.
"""

import importlib
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
    "cli.search",
    "extras.search.run_search",
    "cli.data",
    "cli.parse",
    "results.in_worker",
    "results.predict_files",
    "results.predictor",
    "results.evaluate",
    "results.export",
    "extras.report",
    "run_folder.listing",
    "run_folder.folder",
    "extras.doctor",
    "extras.bench",
    "experiment.experiment",
    "experiment.recipes.table",
    "experiment.schedule",
    "experiment.plan",
    "job",
    "experiment.user_code",
    "places",
    "places.local",
    "places.spark.place",
    "places.spark.session",
    "places.ray",
    "errors",
    "data",
]


def imported_by(statement):
    """Return the heavy libraries and the parts of Paceline that `statement` loads."""
    program = f"""import sys
{statement}
print(*(name for name in sys.modules if name.split(".")[0] in {(*HEAVY, "paceline")!r}))"""
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
    loaded = imported_by("import paceline.loop")
    assert "paceline.loop" in loaded
    assert not loaded & {
        *HEAVY,
        "paceline.data.build_source",
        "paceline.models.build",
        "paceline.maths.template",
        "paceline.engines.collective",
    }


def test_there_is_no_drawer_for_odds_and_ends():
    assert not [
        f for f in SOURCE.rglob("*.py") if f.stem in ("utils", "util", "helpers", "common", "misc")
    ]


def test_help_answers_within_half_a_second():
    """The best of five, in CPU time, so that a busy machine does not matter."""
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


def test_what_keras_does_not_need_is_hidden_only_while_it_is_imported(monkeypatch):
    from paceline.engines import devices

    monkeypatch.delitem(sys.modules, "wave", raising=False)
    with devices._hidden(("wave", "json")):
        with pytest.raises(ImportError):
            importlib.import_module("wave")
        assert importlib.import_module("json").dumps, "somebody imported it before"
    assert importlib.import_module("wave").open
