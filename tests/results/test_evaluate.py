"""`paceline eval` and `paceline.evaluate`: the bits of training's own evaluation, each class."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import paceline as library
from helpers import SOON_S, assert_refused, metrics_of, program, wait_until
from in_process import paceline_here
from made_runs import SMALL, make_grey_run, make_run
from paceline.cli.results import _print_classes
from paceline.errors import UserError
from paceline.experiment.experiment import Average, Data
from paceline.maths.metrics import num_batches, summarize
from paceline.requests import EvaluateRequest
from paceline.results.evaluate import evaluate_run
from paceline.results.scores import Evaluation


@pytest.fixture(scope="module")
def evaluated(uninterrupted: Path) -> Evaluation:
    return library.evaluate(uninterrupted)


@pytest.mark.slow
def test_the_numbers_are_those_of_the_chiefs_own_evaluation_bit_for_bit(
    uninterrupted: Path, evaluated: Evaluation
):
    own = metrics_of(uninterrupted)[-1]
    assert (evaluated.step, evaluated.count) == (own["step"], own["test_count"]) == (24, 131)
    assert (evaluated.loss, evaluated.accuracy, evaluated.top5) == (
        own["test_loss"],
        own["test_accuracy"],
        own["test_top5"],
    )


def test_single_examples_add_up_to_the_whole(evaluated: Evaluation):
    assert evaluated.probabilities.shape == (131, 10)
    np.testing.assert_allclose(evaluated.probabilities.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(evaluated.labels, np.arange(131) % 10)
    assert (evaluated.probabilities.argmax(axis=1) == evaluated.labels).mean() == evaluated.accuracy
    confusion = evaluated.confusion()
    assert confusion.sum() == 131
    assert np.trace(confusion) / 131 == evaluated.accuracy
    scores = evaluated.per_class()
    assert [score.count for score in scores] == [14] + [13] * 9
    assert sum(score.count * score.accuracy for score in scores) / 131 == pytest.approx(
        evaluated.accuracy
    )


@pytest.mark.slow
def test_the_command_prints_the_same_as_json_and_leaves_no_log(
    uninterrupted: Path, evaluated: Evaluation, tmp_path: Path
):
    ended = paceline_here("eval", str(uninterrupted), "--top-k", "1", "5", "--json", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, ""), ended
    assert json.loads(ended.out) == evaluated.to_json(top_k=(1, 5))
    assert json.loads(ended.out)["top_k"] == {"1": evaluated.accuracy, "5": evaluated.top5}
    assert not list(tmp_path.rglob("*"))


def test_an_unfinished_run_found_by_its_name_is_evaluated_with_a_note(
    stopped_at_5: Path, tmp_path: Path
):
    shutil.copytree(stopped_at_5, tmp_path / "runs" / "mine")
    ended = paceline_here("eval", "mine", cwd=tmp_path)
    assert ended.code == 0, ended
    first, second, *table = ended.out.splitlines()
    assert first == "runs/mine, step 5, 131 test images"
    assert second.startswith("accuracy 0.")
    assert len(table) == 1 + 10 + 1
    assert table[-1].split()[:2] == ["macro", "131"]
    assert ended.err == "note: runs/mine is not finished; this is its last checkpoint so far\n"


@pytest.mark.slow
def test_the_best_checkpoint_is_chosen_by_its_metric_and_evaluated_with_its_moving_average(
    tmp_path: Path,
):
    data = Data(train_size=64, test_size=33, validation=20)
    run, core = make_run(
        tmp_path / "run", replace(SMALL, data=data, average=Average(0.9)), (0.2, 0.7, 0.4)
    )
    for checkpoint, step in (("best", 2), ("last", 3), ("1", 1)):
        for split in ("test", "validation"):
            found = evaluate_run(run, EvaluateRequest(checkpoint, split=split))
            state = core_state(run, core, step)
            numbers = range(num_batches(core.splits[split].size, core.eval_batch_size))
            rows = [
                core.examine[split](
                    state["ema"], state["ema_stats"], tf.constant(number, tf.int64)
                ).row.numpy()
                for number in numbers
            ]
            own = summarize(np.stack(rows))
            assert (found.step, found.loss, found.accuracy) == (step, own.loss, own.accuracy)


def core_state(run, core, step):
    from paceline.run_folder.checkpoints import Checkpoints

    vectors = Checkpoints(run.checkpoints, core.layout).load(step).vectors
    return {name: tf.constant(vector) for name, vector in vectors.items()}


def test_without_a_metric_the_best_is_the_last(tmp_path: Path):
    run, _ = make_run(
        tmp_path / "run", replace(SMALL, data=Data(train_size=32, test_size=5)), (None, None)
    )
    assert evaluate_run(run, EvaluateRequest("best")).step == 2
    with pytest.raises(UserError, match="'good'; it must be best, last or a step: 1, 2"):
        evaluate_run(run, EvaluateRequest("good"))


@pytest.mark.slow
def test_data_that_moved_are_found_by_the_flag_and_other_classes_are_refused(tmp_path: Path):
    run, _, _ = make_grey_run(tmp_path)
    before = evaluate_run(run)
    (tmp_path / "arrays").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="which is not there; pass"):
        evaluate_run(run)
    assert evaluate_run(run, EvaluateRequest(data_dir=str(tmp_path / "moved"))).loss == before.loss
    (tmp_path / "moved" / "classes.json").write_text('["x", "y", "z"]')
    with pytest.raises(UserError, match="classes x, y, z"):
        evaluate_run(run, EvaluateRequest(data_dir=str(tmp_path / "moved")))


@pytest.mark.parametrize("command", [("eval", "run"), ("predict", "run", "a.png")])
def test_a_damaged_run_is_one_line(uninterrupted: Path, tmp_path: Path, command: tuple[str, ...]):
    shutil.copytree(uninterrupted, tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text()[:100])
    (tmp_path / "a.png").touch()
    assert_refused(paceline_here(*command, cwd=tmp_path), "is damaged")


def test_a_run_without_a_whole_checkpoint_is_one_line(tmp_path: Path):
    run, _ = make_run(tmp_path / "run", replace(SMALL, data=Data(train_size=32, test_size=5)))
    for file in run.checkpoints.iterdir():
        file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        evaluate_run(run)
    shutil.rmtree(run.checkpoints)
    with pytest.raises(UserError, match="there is no checkpoint yet"):
        evaluate_run(run)


def test_bad_input_is_one_line(uninterrupted: Path, tmp_path: Path):
    nowhere = paceline_here("eval", "nowhere", cwd=tmp_path)
    assert_refused(nowhere, "no run in nowhere", "paceline train")
    assert_refused(paceline_here("eval", cwd=tmp_path), "Missing from paceline eval: RUN")
    assert_refused(
        paceline_here("eval", str(uninterrupted), "--split", "train", cwd=tmp_path), "--split"
    )
    assert_refused(
        paceline_here("eval", str(uninterrupted), "--checkpoint", "7", cwd=tmp_path),
        "no checkpoint of step 7",
        "24",
    )


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(uninterrupted: Path, tmp_path: Path):
    with program("eval", str(uninterrupted), cwd=tmp_path) as running:
        wait_until(running.workers)
        os.kill(running.pid, signal.SIGINT)
        ended = running.wait(SOON_S)
    assert (ended.code, ended.err) == (130, "paceline: stopped by SIGINT\n")


def test_of_many_classes_the_table_shows_those_with_the_lowest_f1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of 100,000 classes took minutes and 3 GB."""
    monkeypatch.setattr("paceline.cli.results.MOST_CLASSES", 2)
    scores = dict.fromkeys(("precision", "recall", "f1"), 0.5)
    rows = [
        scores | {"name": name, "count": 1, "f1": f1, "mistaken_for": ""}
        for name, f1 in (("none", None), ("high", 0.9), ("none too", None), ("low", 0.1))
    ]
    _print_classes({"macro": scores, "count": 4, "classes": rows})
    first, _, *shown = capsys.readouterr().out.splitlines()
    assert first == "the 2 classes with the lowest F1; --json has all 4"
    assert [line.split()[0] for line in shown] == ["low", "high", "macro"]
