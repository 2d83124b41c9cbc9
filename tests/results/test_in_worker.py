"""Notes about the run that is used."""

from dataclasses import replace
from pathlib import Path

from paceline.experiment.recipes.table import get_recipe
from paceline.results.in_worker import _note_unfinished
from report_runs import make_folder


def test_an_unfinished_run_has_a_best_checkpoint_only_with_a_validation_split(tmp_path: Path):
    texts: list[str] = []
    for number, validation in enumerate((0, 8)):
        smoke = get_recipe("smoke")
        experiment = replace(smoke, data=replace(smoke.data, validation=validation))
        run = make_folder(tmp_path, str(number), experiment)
        _note_unfinished(run, "best", lambda message: texts.append(message.text))
    assert ["its last checkpoint" in texts[0], "its best checkpoint" in texts[1]] == [True, True]
