"""What a process loads when it imports a module, and how quickly the program answers.

Which folder may import which is in pyproject.toml, for `lint-imports`. That reads the source and
cannot see what is loaded at run time, because TensorFlow is imported inside functions.
"""

import subprocess
import sys
from pathlib import Path

import paceline
from helpers import TIMEOUT_S

SOURCE = Path(paceline.__file__).parent
HEAVY = ("tensorflow", "keras", "ray", "pyspark", "torch")
DRIVER_SIDE = """
    errors job experiment.experiment experiment.recipes.table experiment.schedule experiment.plan
    experiment.user_code places places.local places.ray places.spark.place places.spark.session
    run_folder.folder run_folder.listing results.in_worker results.predict
    results.evaluate results.export extras.doctor extras.report.report_page
    extras.search.run_search cli.commands cli.results cli.runs cli.train
    cli.search cli.data cli.parse data loop
"""
NOT_FOR_THE_LOOP = "data.build_source build maths.template engines.collective"


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_drivers_side_imports_nothing_heavy():
    program = f"""import sys, importlib
for name in {DRIVER_SIDE.split()!r}:
    importlib.import_module(f"paceline.{{name}}")
    heavy = sys.modules.keys() & {set(HEAVY)!r}
    assert not heavy, (name, heavy)"""
    run(program)


def test_the_loop_imports_neither_data_nor_models():
    names = {f"paceline.{name}" for name in NOT_FOR_THE_LOOP.split()}
    run(f"import sys, paceline.loop; assert not sys.modules.keys() & {names!r}")


def test_there_is_no_drawer_for_odds_and_ends():
    assert not [
        f for f in SOURCE.rglob("*.py") if f.stem in ("utils", "util", "helpers", "common", "misc")
    ]


def test_help_of_train_names_the_flags_and_loads_no_tensorflow():
    command = "from paceline.cli.commands import main; main(['train', '--help'])"
    shown = run(f"import sys\ntry: {command}\nfinally: assert 'tensorflow' not in sys.modules")
    flags = {"--model.depth", "--global-batch-size", "--run-dir"}
    assert flags <= set(shown.replace(",", " ").split())
