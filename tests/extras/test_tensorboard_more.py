"""What TensorBoard shows on request."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers import paceline
from paceline.errors import UserError
from paceline.experiment.recipes.table import get_recipe
from paceline.job import Job, Run


@pytest.mark.slow
def test_histograms_images_and_a_profile_are_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = "train smoke --histograms --profile 8 16 --run-dir run"
    assert paceline(*command.split(), cwd=tmp_path).code == 0
    board = EventAccumulator(str(run / "events" / "weights")).Reload()
    size, *images = board.Tensors("images")[0].tensor_proto.string_val[1:]
    assert (size, len(images)) == (b"32", 8)
    steps = [each.step for each in board.Tensors("params/stem_conv/kernel")]
    assert steps[-1] == 24
    assert list((run / "events").rglob("*.xplane.pb"))


@pytest.mark.parametrize("steps", [(10,), (20, 10), (1, 2, 3)])
def test_a_profile_is_two_steps(steps: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="must be two steps"):
        Job(get_recipe("smoke"), run=Run(profile=steps))
