"""What TensorBoard shows of a run, as its own reader and plug-ins read it."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import blocks
from blocks import block_of, evaluation_of
from paceline.run_folder.events import TensorBoard


def scalar(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 6)) for event in read_events(folder).Scalars(tag)]


def read_events(folder: Path) -> EventAccumulator:
    # With a module of this name, tensorboard reads files without TensorFlow, and starts quickly.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    accumulator = EventAccumulator(
        str(folder), size_guidance=dict.fromkeys(("scalars", "tensors", "images"), 0)
    )
    accumulator.Reload()
    return accumulator


def test_events_are_read_by_tensorboard(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "events")
    assert not list(tmp_path.iterdir())
    board(block_of(2), None)
    board(block_of(4, more={"staleness_max": 3}), evaluation_of(test=0.75))
    board.close()
    assert scalar(tmp_path / "events", "loss") == [(1, 0.5), (2, 0.25), (3, 0.5), (4, 0.25)]
    assert scalar(tmp_path / "events", "learning_rate") == [(1, 0.2), (2, 0.1), (3, 0.2), (4, 0.1)]
    assert scalar(tmp_path / "events", "images_per_second") == [(2, 1000.0), (4, 1000.0)]
    assert scalar(tmp_path / "events", "test_accuracy") == [(4, 0.75)]
    assert scalar(tmp_path / "events", "staleness_max") == [(4, 3.0)]


def test_events_of_steps_that_are_computed_again_are_hidden(tmp_path: Path) -> None:
    crashed = TensorBoard(tmp_path)
    for step in (2, 4, 6):
        crashed(block_of(step), None)
    resumed = TensorBoard(tmp_path, first_step=2)
    resumed(block_of(4, [7.0, 8.0]), None)
    assert scalar(tmp_path, "loss") == [(1, 0.5), (2, 0.25), (3, 7.0), (4, 8.0)]
    again = TensorBoard(tmp_path)
    again(block_of(1, [9.0]), None)
    assert scalar(tmp_path, "loss") == [(1, 9.0)]
    for board in (crashed, resumed, again):
        board.close()


def test_events_are_written_without_tensorflow(tmp_path: Path) -> None:
    program = f"""
import sys
import paceline.run_folder.folder, paceline.run_folder.checkpoints, paceline.api.progress
from paceline.run_folder.events import TensorBoard
sys.path.append({str(Path(blocks.__file__).parent)!r})
from blocks import block_of
TensorBoard({str(tmp_path)!r})(block_of(1, [0.5]), None)
print("tensorflow" in sys.modules, "keras" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False False\n"
    assert scalar(tmp_path, "loss") == [(1, 0.5)]


def test_a_run_shows_the_loss_of_every_step_its_evaluations_and_its_settings(
    uninterrupted: Path,
) -> None:
    events = read_events(uninterrupted / "events")
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 25))
    assert [event.step for event in events.Scalars("test_accuracy")] == [8, 16, 24]
    (content,) = events.PluginTagToContent("hparams").values()
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["schedule.rate"].number_value == 0.05
    assert settings["schedule.name"].string_value == "cosine"
