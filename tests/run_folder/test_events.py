"""What TensorBoard shows of a run, as its own reader and plug-ins read it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.graph_pb2 import GraphDef

import blocks
from blocks import block_of, evaluation_of
from helpers import once_per_session, result_of, write_own_code
from in_process import paceline_here
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.plan import Plan
from paceline.job import Job, Run
from paceline.maths.metrics import Examples
from paceline.maths.state import State, StateLayout
from paceline.run_folder.drawing import draw_confusion, draw_grid
from paceline.run_folder.events import TensorBoard

EXAMPLES = Examples(
    np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), np.array([0.9, 0.8, 0.7, 0.6], np.float32)
)


def scalar(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 6)) for event in read_events(folder).Scalars(tag)]


def read_events(folder: Path) -> EventAccumulator:
    # With a module of this name, tensorboard reads files without TensorFlow, and starts quickly.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    accumulator = EventAccumulator(
        str(folder), size_guidance=dict.fromkeys(("scalars", "tensors", "histograms", "images"), 0)
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


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_of_images_is_shown(tmp_path: Path, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 6, channels), dtype=np.uint8)
    board = TensorBoard(tmp_path)
    board.image_grid("inputs", images, step=3)
    board.close()
    (event,) = read_events(tmp_path).Images("inputs")
    assert (event.step, event.height, event.width) == (3, 2 * 10 - 2, 3 * 8 - 2)
    shown = np.asarray(Image.open(io.BytesIO(event.encoded_image_string))).reshape(
        event.height, event.width, channels
    )
    np.testing.assert_array_equal(shown, draw_grid(images))
    np.testing.assert_array_equal(shown[10:18, 8:14], images[4])


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


def test_a_confusion_matrix_is_drawn_at_evaluations(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, classes=("cat", "dog"))
    board(block_of(2), None)
    board(block_of(4), evaluation_of(EXAMPLES, test=0.75))
    board.close()
    (event,) = read_events(tmp_path).Images("confusion/test")
    assert event.step == 4
    shown = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    np.testing.assert_array_equal(shown, draw_confusion(np.array([[1, 1], [0, 2]]), ("cat", "dog")))


def test_the_colours_of_a_confusion_matrix_follow_its_counts() -> None:
    image = draw_confusion(np.array([[100, 0], [100, 0]]), ("a", "b"), cell=40).astype(int)
    corner = {
        (row, column): image[-80 + 40 * row + 4, -80 + 40 * column + 4]
        for row in (0, 1)
        for column in (0, 1)
    }
    assert list(corner[0, 0]) == [20, 70, 140]
    assert list(corner[1, 0]) == [190, 60, 0]
    assert list(corner[0, 1]) == list(corner[1, 1]) == [255, 255, 255]


def test_histograms_have_every_weight(tmp_path: Path) -> None:
    layout = StateLayout(
        {"params": (("conv/kernel", (3,)), ("dense/bias", (2,))), "stats": (("mean", (1,)),)}
    )
    state = State(
        7,
        {
            "params": np.array([-1.0, 0.0, 3.0, 5.0, 5.0], np.float32),
            "stats": np.zeros(1, np.float32),
        },
    )
    board = TensorBoard(tmp_path)
    board.histograms(state, layout)
    board.close()
    events = read_events(tmp_path)
    assert events.Tags()["histograms"] == ["params/conv/kernel", "params/dense/bias"]
    (event,) = events.Histograms("params/conv/kernel")
    histogram = event.histogram_value
    assert (event.step, histogram.min, histogram.max, histogram.num, histogram.sum) == (
        7,
        -1.0,
        3.0,
        3.0,
        2.0,
    )
    assert sum(histogram.bucket) == 3
    assert histogram.sum_squares == 10.0


@pytest.mark.parametrize("given", ["5", "5,5", "9,3", "a,b", "-1,4", "1,2,3"])
def test_a_profile_of_no_steps_is_one_line(given: str) -> None:
    with pytest.raises(UserError, match="it must be two steps A,B") as error:
        Job(Experiment(), run=Run(profile=given))
    assert "\n" not in str(error.value)


def test_blocks_end_where_a_profile_begins_and_ends() -> None:
    plan = Plan(steps_per_epoch=100, total_steps=300, pauses=(10, 20))
    assert [plan.next_stop(step, 1000) for step in (0, 9, 10, 19, 20)] == [10, 10, 20, 20, 100]
    rounds = Plan(steps_per_epoch=100, total_steps=300, round_steps=8, pauses=(10, 20))
    assert [rounds.next_stop(step, 1000) for step in (0, 16, 24)] == [16, 24, 104]


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of smoke with everything that TensorBoard can show, stopped once and resumed."""

    def make(folder: Path) -> None:
        flags = ("train", "smoke", "--run-dir", "run", "--histograms", "--profile", "9,12")
        assert paceline_here(*flags, "--stop-at", "10", cwd=folder).code == 0
        assert paceline_here(*flags, cwd=folder).code == 0

    return once_per_session(tmp_path_factory, "looked-at", make) / "run"


@pytest.mark.slow
def test_histograms_and_profiles_change_no_bit(looked_at: Path, uninterrupted: Path) -> None:
    assert result_of(looked_at)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_a_run_shows_scalars_images_confusion_and_histograms(looked_at: Path) -> None:
    events = read_events(looked_at / "events")
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 25))
    assert [event.step for event in events.Scalars("test_accuracy")] == [8, 16, 24]
    assert [event.step for event in events.Images("input")] == [0]
    assert [event.step for event in events.Images("confusion/test")] == [8, 16, 24]
    kernels = [tag for tag in events.Tags()["histograms"] if tag.endswith("kernel")]
    assert len(kernels) == 8  # seven convolutions and the dense layer of ResNet-8
    assert [event.step for event in events.Histograms(kernels[0])] == [4, 8, 10, 12, 16, 20, 24]


def test_without_flags_a_run_writes_no_histograms_and_no_profile(uninterrupted: Path) -> None:
    assert not read_events(uninterrupted / "events").Tags()["histograms"]
    assert not (uninterrupted / "events" / "plugins").exists()


@pytest.mark.slow
def test_the_graph_has_the_layers_and_their_connections(looked_at: Path) -> None:
    graph = GraphDef.FromString(read_events(looked_at / "events").Graph().SerializeToString())
    nodes = {node.name: node for node in graph.node}
    assert nodes["image"].op == "InputLayer"
    assert list(nodes["stem/conv"].input) == ["image"]
    assert set(nodes["stage1/block1/add"].input) == {"stage1/block1/norm2", "stem/relu"}
    assert list(nodes["head/dense"].input) == ["head/mean"]
    assert [dim.size for dim in nodes["head/dense"].attr["_output_shapes"].list.shape[0].dim] == [
        -1,
        10,
    ]
    assert all(parent in nodes for node in graph.node for parent in node.input)


def test_models_of_the_users_own_have_a_graph_too(tmp_path: Path) -> None:
    write_own_code(tmp_path)
    flags = ("--run-dir", "run", "--model.build", "own.py:build_model", "--steps", "2")
    ended = paceline_here("train", "smoke", *flags, cwd=tmp_path)
    assert ended.code == 0, ended.err
    graph = GraphDef.FromString(
        read_events(tmp_path / "run" / "events").Graph().SerializeToString()
    )
    ops = [node.op for node in graph.node]
    assert ops == [
        "InputLayer",
        "Conv2D",
        "BatchNormalization",
        "ReLU",
        "Dropout",
        "Flatten",
        "Dense",
    ]


@pytest.mark.slow
def test_the_hyper_parameters_tab_compares_runs(
    looked_at: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """The plug-in itself lists each run with its settings and its metrics."""
    for name, run in (("looked-at", looked_at), ("uninterrupted", uninterrupted)):
        (tmp_path / name).symlink_to(run / "events")
    program = f"""
import sys, types, json
sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
multiplexer = plugin_event_multiplexer.EventMultiplexer()
multiplexer.AddRunsFromDirectory({str(tmp_path)!r})
multiplexer.Reload()
provider = data_provider.MultiplexerDataProvider(multiplexer, {str(tmp_path)!r})
context = backend_context.Context(TBContext(data_provider=provider, logdir={str(tmp_path)!r}))
metadata = context.hparams_metadata(RequestContext(), "e", None)
experiment = context.experiment_from_metadata(RequestContext(), "e", True, metadata, None)
columns = [api_pb2.ColParams(hparam=info.name) for info in experiment.hparam_infos]
columns += [api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos]
statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING, api_pb2.STATUS_SUCCESS]
request = api_pb2.ListSessionGroupsRequest(
    slice_size=10, col_params=columns, allowed_statuses=statuses
)
answer = list_session_groups.Handler(RequestContext(), context, "e", request).run()
(group,) = answer.session_groups
sessions = {{
    session.name: {{m.name.tag: m.value for m in session.metric_values}}
    for session in group.sessions
}}
rate, name = (group.hparams[f"schedule.{{each}}"] for each in ("rate", "name"))
print(json.dumps([rate.number_value, name.string_value, sessions]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    rate, name, sessions = json.loads(done.stdout)
    assert (rate, name) == (0.05, "cosine")
    assert set(sessions) == {"looked-at", "uninterrupted"}
    for metrics in sessions.values():
        assert metrics["test_accuracy"] == pytest.approx(result_of(uninterrupted)["test_accuracy"])


def test_a_profile_has_the_operations_of_its_steps(looked_at: Path) -> None:
    """There is one profile of the attempt that was stopped, and one of the rest."""
    files = sorted((looked_at / "events" / "plugins" / "profile").glob("*/*.xplane.pb"))
    assert len(files) == 2
    for file in files:
        content = file.read_bytes()
        assert b"Conv2DBackpropFilter" in content


@pytest.mark.skipif(
    find_spec("xprof") is None,
    reason="TensorBoard's profiler plug-in is not installed: pip install xprof",
)
def test_the_profiler_plug_in_opens_the_profile(looked_at: Path) -> None:
    from xprof.convert import raw_to_tool_data

    files = sorted((looked_at / "events" / "plugins" / "profile").glob("*/*.xplane.pb"))
    data, _ = raw_to_tool_data.xspace_to_tool_data([str(files[0])], "trace_viewer", {})
    assert b"Conv2DBackpropFilter" in (data if isinstance(data, bytes) else data.encode())
