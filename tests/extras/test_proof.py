"""Chains of digests, `paceline verify`, `paceline diff` and the auditor: what is wrong is found and
named, and what is right is not."""

import base64
import json
import math
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import paceline
from helpers import SUPPORT, assert_refused, fine, metrics_of, once_per_session, program, result_of
from helpers import paceline as paceline_program
from in_process import paceline_here
from paceline.experiment.plan import Plan
from paceline.extras.proof import follow as auditing
from paceline.extras.proof import replay
from paceline.extras.proof import verify as checking
from paceline.extras.proof.chain import first_link, next_link
from paceline.extras.proof.differences import (
    Chain,
    Difference,
    find_difference,
    read_chain,
    workers_of,
)
from paceline.extras.proof.follow import Auditor
from paceline.extras.proof.replay import How, Piece, other_bits
from paceline.extras.proof.verify import choose, merged
from paceline.run_folder.checkpoint_file import pack, read_state
from paceline.run_folder.checkpoints import file_of
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import read_json, sealed, write_json
from s3_server import put_run

TWELVE = ("--epochs", "1.5", "--save-every", "0.5")
"""Twelve steps of smoke, saved after each fourth."""


def rows(*values: tuple[int, ...]) -> dict[int, np.ndarray]:
    return {step: np.array(each, np.uint16) for step, each in enumerate(values, 1)}


ONE = Chain(2, {2: "a", 4: "b"}, rows((1, 2), (3, 4), (5, 6), (7, 8)))


@pytest.mark.parametrize(
    ("other", "found", "text"),
    [
        (ONE, None, ""),
        (
            replace(ONE, states={2: "a", 4: "?"}, signatures=rows((1, 2), (3, 4), (5, 0), (0, 0))),
            Difference(2, 3, (1,)),
            "step 3, replica 1",
        ),
        (
            replace(ONE, states={2: "a", 4: "?"}),
            Difference(3, 4, ()),
            "step 4, the update after the sum over the replicas",
        ),
        (
            replace(ONE, signatures=rows((1, 2), (3, 4), (5, 6), (0, 0))),
            Difference(3, 4, (0, 1), True),
            "the state before step 4, with which all replicas began",
        ),
        (Chain(2, {2: "a", 4: "?"}), Difference(2, 4, ()), "a step after 2, at the latest step 4"),
        (Chain(4, {2: "?"}, rows((9, 9, 9, 9))), Difference(0, 2, ()), "a step after 0"),
    ],
)
def test_two_chains_part_in_a_step_and_a_replica(other, found, text):
    difference = find_difference(ONE, other, 0, 4)
    assert difference == found
    assert str(difference or "").startswith(text)


def test_pieces_begin_at_checkpoints_and_end_at_recorded_steps():
    plan, recorded = Plan(400, 4000, save_every=400), list(range(100, 4001, 100))
    starts = range(0, 4000, 400)
    for seed in range(20):
        pieces = choose(starts, recorded, plan, 0.2, seed)
        assert sum(piece.steps for piece in pieces) == 800
        assert {piece.start % 400 for piece in pieces} == {0}
    (short,) = choose(starts, recorded, plan, 0.02, 0)
    assert short.steps == 100
    assert len({choose(starts, recorded, plan, 0.02, seed)[0].start for seed in range(50)}) > 5
    assert choose([0], recorded, plan, 0.5, 0) == [Piece(0, 400)]
    assert merged([Piece(0, 4), Piece(4, 8), Piece(12, 16)]) == [Piece(0, 8), Piece(12, 16)]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole run of twelve steps, and all of its checkpoints."""

    def make(folder: Path) -> None:
        fine(
            paceline_here("train", "smoke", "--run-dir", "run", "--keep", "9", *TWELVE, cwd=folder)
        )

    return once_per_session(tmp_path_factory, "proof", make)


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A copy to change."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(trained / "run", tmp_path / "run")
    return RunFolder(tmp_path / "run")


def verify(run: RunFolder, *flags: str):
    return paceline_here("verify", str(run.path), *flags, cwd=run.path.parent)


def edit_chain(run: RunFolder, step: int, **changes: str) -> None:
    """Change a line, with the right checksum."""
    records = run.chain.read()
    run.chain.path.unlink()
    for record in records:
        run.chain.append(record | changes if record["step"] == step else record)


def forge_to_the_end(run: RunFolder, step: int, state: str) -> None:
    """Change a digest, all links after it, and the result."""
    edit_chain(run, step, state=state)
    link, records = first_link(run), run.chain.read()
    run.chain.path.unlink()
    for record in records:
        if "link" in record:
            link = record["link"] = next_link(link, record["step"], record["state"])
        run.chain.append(record)
    write_json(run.path / "result.json", sealed(result_of(run.path) | {"chain": link}))


@pytest.mark.slow
def test_a_run_is_equal_to_its_repetition_and_leaves_nothing_behind(run: RunFolder):
    ended = fine(verify(run, "--share", "0.34", "--seed", "1"))
    assert re.match(r"checked 33.3 % of 12 steps in \d+ s: equal\n", ended.out), ended
    assert "the other steps were not trained again" in ended.out
    everything = json.loads(fine(verify(run, "--all", "--json")).out)
    assert (everything["checked"], everything["equal"], everything["note"]) == (12, True, "")
    assert not [*(run.path.parent / "cache" / "verify").iterdir()]
    assert result_of(run.path)["chain"] == run.chain.read()[-1]["link"]


def test_an_edited_chain_is_found_without_training(run: RunFolder):
    whole = run.chain.path.read_text()
    edit_chain(run, 4, state="0" * 64)
    assert "the link of step 4 does not follow from the one before it" in verify(run).out
    run.chain.path.write_text(whole)
    write_json(run.path / "result.json", sealed(result_of(run.path) | {"chain": "0" * 64}))
    assert "the chain in result.json is not the end" in verify(run).out
    records = [record for record in run.chain.read() if record["step"] != 4]
    run.chain.path.unlink()
    for record in records:
        run.chain.append(record)
    ended = verify(run)
    assert ended.code == 1
    assert "DIFFERENT\nthe digest of step 4 is missing" in ended.out


def test_a_config_with_another_seed_does_not_fit_the_chain(run: RunFolder):
    config = read_json(run.path / "config.json", "")
    config["experiment"]["seed"] = 5
    write_json(run.path / "config.json", sealed(config))
    assert "the link of step 4 does not follow from the one before it" in verify(run).out


@pytest.mark.slow
def test_a_chain_that_was_forged_to_its_end_is_found_by_training_again(run: RunFolder):
    for file in run.checkpoints.iterdir():
        file.unlink()
    forge_to_the_end(run, 4, "0" * 64)
    ended = verify(run, "--all")
    assert ended.code == 1
    assert "DIFFERENT\nstep 4, the update after the sum over the replicas\n" in ended.out


def alter_a_weight(run: RunFolder, step: int) -> None:
    """Change one weight of a checkpoint, which then has right digests of its own."""
    from safetensors import safe_open

    from paceline.maths.state import StateLayout

    file = file_of(run.checkpoints, step)
    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
    parts: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in json.loads(metadata["variables"]):
        parts.setdefault(name.partition("/")[0], []).append((name.partition("/")[2], tuple(shape)))
    layout = StateLayout({name: tuple(each) for name, each in parts.items()})
    from paceline.run_folder.checkpoint_file import ANY_RUN

    state = read_state(file, step, layout, ANY_RUN)
    state.vectors["params"][5] += np.float32(1e-6)
    file.write_bytes(pack(state, layout, metadata["experiment"], None))


def test_a_checkpoint_with_an_altered_weight_is_named(run: RunFolder):
    alter_a_weight(run, 4)
    ended = verify(run)
    assert ended.code == 1
    assert "the checkpoint of step 4 is not the state that the run recorded there" in ended.out


@pytest.mark.slow
def test_a_skipped_step_is_named(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The state after step 3 is thrown away; the run continues as if it were there."""
    from paceline.engines.collective import CollectiveEngine

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    train_round, flags = CollectiveEngine._train_round, ("--run-dir", "run", "--keep", "9", *TWELVE)

    def skipping(self, first, last, table, signals):
        import tensorflow as tf

        before = {name: tf.identity(each) for name, each in self._vectors.items()}
        tails, written = train_round(self, first, last, table, signals)
        with tf.control_dependencies([written]):
            for name, each in self._vectors.items():
                each.assign(tf.where(first == 2, before[name], each.read_value()))
        return tails, written

    with monkeypatch.context() as patched:
        patched.setattr(CollectiveEngine, "_train_round", skipping)
        fine(paceline_here("train", "smoke", *flags, cwd=tmp_path))
    ended = paceline_here("verify", "run", "--all", cwd=tmp_path)
    assert ended.code == 1
    assert "DIFFERENT\nthe state before step 4, with which all replicas began" in ended.out
    ended = paceline_here("diff", "run", str(trained / "run"), cwd=tmp_path)
    assert "DIFFERENT from the state before step 4" in ended.out


def save_data(folder: Path, swapped: int) -> None:
    """Write 64 images with labels; those of two examples are swapped."""
    from paceline.formats.arrays import save_arrays

    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, [64, 32, 32, 3], np.uint8)
    labels = np.arange(64) % 4
    if swapped >= 0:
        labels[swapped] = (labels[swapped] + 1) % 4
    save_arrays(folder, (images, labels), (images[:16], labels[:16]))


@pytest.mark.slow
def test_a_weight_that_was_altered_between_two_commands_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing but training again shows it: the altered checkpoint is removed later."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    run, flags = RunFolder(tmp_path / "run"), ("--run-dir", "run", "--keep", "1", *TWELVE)
    fine(paceline_here("train", "smoke", *flags, "--stop-at", "4", cwd=tmp_path))
    alter_a_weight(run, 4)
    fine(paceline_here("train", "smoke", *flags, cwd=tmp_path))
    pieces = list[Piece]()
    monkeypatch.setattr(replay, "copy_start", noted(replay.copy_start, pieces))
    ended = verify(run, "--all")
    assert ended.code == 1
    assert "DIFFERENT\nthe state before step 5, with which all replicas began\n" in ended.out
    assert len(pieces) - 1 <= math.log2(12), "pieces that were trained after the difference"


def noted(copy_start, pieces: list):
    def copy_and_note(run, start, folder):
        if not (folder / "config.json").exists():
            pieces.append((start, folder))
        copy_start(run, start, folder)

    return copy_and_note


@pytest.mark.slow
def test_two_seeds_part_in_the_first_step_and_the_seed_is_the_reason(trained: Path, tmp_path: Path):
    flags = ("--run-dir", "other", "--seed", "1", "--stop-at", "4", *TWELVE)
    fine(paceline_here("train", "smoke", *flags, cwd=tmp_path))
    ended = paceline_here("diff", "other", str(trained / "run"), cwd=tmp_path)
    assert ended.code == 1
    assert "DIFFERENT from step 1, all replicas\nseed: 1 -> 0\n" in ended.out


@pytest.mark.slow
def test_an_extended_run_has_the_chain_of_one_that_was_always_so_long(tmp_path: Path):
    """The end of the shorter training is not recorded in the longer one."""
    flags = ("--schedule.name", "constant", "--evaluate-every", "0", "--save-every", "0.5")
    for name, steps in (("whole", "9"), ("parts", "6"), ("parts", "9")):
        train = ("train", "smoke", "--run-dir", name, *flags, "--steps", steps)
        fine(paceline_here(*train, cwd=tmp_path))
    runs = [RunFolder(tmp_path / name) for name in ("parts", "whole")]
    chains = [read_chain(run) for run in runs]
    assert [chain.fault for chain in chains] == ["", ""]
    assert [*chains[0].states] == [4, 8, 9]
    assert chains[0].states == chains[1].states
    assert result_of(runs[0].path)["chain"] == result_of(runs[1].path)["chain"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_swapped_label_is_found_in_the_step_and_replica_that_read_it(library_here: Path):
    swapped = int(paceline.order(64, seed=0, epoch=0)[16 + 9])  # of step 2, replica 2 of 4
    for name, which in (("good", -1), ("bad", swapped)):
        save_data(library_here / f"data-{name}", which)
        settings = {"run_dir": name, "data.dir": f"data-{name}", "progress": False, "steps": 4}
        paceline.train(
            "smoke",
            **{"data.source": "arrays", "global_batch_size": 16, "save_every": 0.5},
            **settings,
        )
    ended = paceline_here("diff", "good", "bad", "--replay", cwd=library_here)
    assert ended.code == 1
    assert "DIFFERENT from step 2, replica 2" in ended.out
    assert "in bad, computed by worker 0 (local x 1, from step 0 on)" in ended.out
    assert "data.content: " in ended.out
    assert "trained again, they part in step 2, replica 2" in ended.out
    assert re.search(r"\S+/\S+ differs by up to \d", ended.out)
    ended = paceline_here("verify", "good", "--data.dir", "data-bad", cwd=library_here)
    assert_refused(ended, "cannot be checked: it cannot continue, the data is not the same")


def test_equal_runs_have_no_difference_and_bad_input_is_refused(run: RunFolder, trained: Path):
    both = ("diff", str(run.path), str(trained / "run"))
    found = json.loads(fine(paceline_here(*both, "--json", cwd=run.path)).out)
    assert (found["equal"], found["steps"], found["reasons"]) == (True, 12, [])
    assert_refused(paceline_here("diff", "one", cwd=run.path), "1 runs were given")
    assert_refused(verify(run, "--share", "0"), "share is 0.0; it must be above 0 and at most 1")
    for file in [*run.checkpoints.iterdir()]:
        file.unlink()
    assert_refused(verify(run, "--share", "0.9"), "90 % of", "checkpoints were removed", "--keep 3")
    run.chain.path.unlink()
    assert_refused(verify(run), "it has recorded no digest")


def rewrite(run: RunFolder, name: str, **changes: object) -> None:
    """Change a JSON file, with the right checksum."""
    write_json(run.path / name, sealed(read_json(run.path / name, "") | changes))


def test_a_run_of_another_arithmetic_or_a_damaged_one_cannot_be_checked(run: RunFolder):
    bits = result_of(run.path)["bits"]
    rewrite(run, "result.json", bits="any CPU (arithmetic 999)")
    assert_refused(verify(run), "run cannot be checked: it was trained with version 999 of the ar")
    rewrite(run, "result.json", bits=bits)
    file = file_of(run.checkpoints, 8)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert_refused(verify(run), "cannot be checked: ", file.name, "is damaged")
    run.chain.path.write_text("")
    assert_refused(verify(run), "it has recorded no digest")
    (run.path / "result.json").write_text("{}")
    assert_refused(verify(run), "result.json is damaged")
    (run.path / "config.json").write_text("{")
    assert_refused(verify(run), "config.json is damaged")


def test_what_tensorflow_computes_may_differ_on_other_cpus_and_versions(
    run: RunFolder, tmp_path: Path
):
    again = RunFolder(tmp_path / "again")
    shutil.copytree(run.path, again.path)
    assert other_bits(run, again) == "", "on any CPU"
    rewrite(again, "result.json", bits="this kind of CPU, because TensorFlow computes Dense")
    assert other_bits(run, again) == "", "the same CPU and libraries"
    versions = run.config()["versions"] | {"tensorflow": "1.0"}
    rewrite(run, "config.json", versions=versions)
    (start,) = run.starts.read()
    run.starts.append(start | {"machine": start["machine"] | {"cpu": "Z80"}})
    reason = other_bits(run, again)
    assert "TensorFlow computes Dense; tensorflow: '1.0' -> " in reason
    assert "CPU: Z80 -> " in reason


@pytest.mark.slow
def test_a_run_that_is_being_written_is_checked_up_to_its_last_digest(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    """The checkpoint of step 4 is removed while the command works; a line is half written."""
    (run.path / "result.json").unlink()
    file_of(run.checkpoints, 12).unlink()
    run.chain.truncate(8)
    with open(run.chain.path, "a") as file:
        file.write('{"step": 1')
    list_steps = checking.list_steps

    def list_and_prune(folder: Path) -> list[int]:
        steps = list_steps(folder)
        file_of(run.checkpoints, 4).unlink(missing_ok=True)
        return steps

    monkeypatch.setattr(checking, "list_steps", list_and_prune)
    run.lock()
    ended = fine(verify(run, "--share", "0.5"))
    run.unlock()
    assert "checked 50 % of 8 steps" in ended.out


@pytest.mark.slow
def test_a_check_that_was_interrupted_continues(run: RunFolder, monkeypatch: pytest.MonkeyPatch):
    file_of(run.checkpoints, 4).unlink()  # so two pieces are left: (0, 4] and (8, 12]
    launch, trained = replay.launch, list[int]()

    def launch_two(job, listen):
        trained.append(job.run.stop_at)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return launch(job, listen)

    monkeypatch.setattr(replay, "launch", launch_two)
    share = ("--share", "0.67")
    assert verify(run, *share).code not in (0, 1, 2)
    assert "checked 66.7 % of 12 steps" in fine(verify(run, *share)).out
    assert trained == [4, 12, 12]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_on_s3_are_compared_checked_and_audited(run: RunFolder, folder: str):
    put_run(run.path, folder)
    there = run.path.parent
    found = json.loads(fine(paceline_here("diff", "run", folder, "--json", cwd=there)).out)
    assert (found["equal"], found["steps"]) == (True, 12)
    ended = fine(paceline_here("verify", folder, "--share", "0.34", cwd=there))
    assert "checked 33.3 % of 12 steps" in ended.out
    fine(paceline_here("verify", folder, "--follow", "--share", "0.1", cwd=there))
    copy = existing_run(folder)
    assert [each["finding"] for each in copy.audits.read()] == [""]


def test_the_auditor_draws_evenly_and_at_least_one_checkpoint(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(auditing, "copy_start", lambda *arguments: None)
    file_of(run.checkpoints, 12).unlink()
    for share, counts in ((0.02, {1}), (0.7, {2, 3}), (1.0, {3})):
        auditors = [Auditor(run, share, How(), seed, tmp_path) for seed in range(20)]
        for auditor in auditors:
            auditor.take_new()
        assert {len(auditor._waiting) for auditor in auditors} == counts
        assert len({tuple(auditor._waiting) for auditor in auditors}) > 1 or share == 1.0


def test_pieces_do_not_begin_at_a_checkpoint_between_two_planned_ones(run: RunFolder):
    """They would overlap with others, and steps would be counted twice."""
    file_of(run.checkpoints, 6).touch()
    assert checking.starts_of(run) == [0, 4, 8, 12]


def test_the_auditor_trains_to_the_next_checkpoint_or_as_far_as_its_share(run: RunFolder):
    for share, stop in ((0.02, 2), (0.34, 4), (1.0, 4)):
        auditor = Auditor(run, share, How(), 0, run.path)
        auditor._waiting = [0]
        assert auditor.next_piece(Chain(4), is_finished=False) is None
        piece = auditor.next_piece(Chain(4, {2: "a", 4: "b", 8: "c"}), is_finished=False)
        assert piece == Piece(0, stop), "of twelve steps, saved after each fourth"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_auditor_checks_a_run_and_notes_it(run: RunFolder):
    ended = fine(verify(run, "--follow", "--share", "1"))
    assert "checked 100 % of 12 steps" in ended.out
    assert [each["step"] for each in run.audits.read()] == [4, 8, 12]
    page = run.path.parent / "page.html"
    fine(paceline_here("report", str(run.path), "-o", str(page), cwd=run.path))
    assert "an auditor trained 3 pieces again: all are equal" in page.read_text()
    records = run.chain.read()
    rows = np.frombuffer(base64.b64decode(records[1]["signatures"]), "<u2").copy()
    rows[-4:] = 0  # of the block's last step
    step = records[1]["step"]
    edit_chain(run, step, signatures=base64.b64encode(rows.tobytes()).decode())
    ended = verify(run, "--follow", "--share", "1")
    assert ended.code == 1
    assert f"the state before step {step}" in ended.out
    assert run.audits.read()[-1]["finding"]


def test_the_order_of_an_epoch_is_that_of_the_training():
    import tensorflow as tf

    from paceline.data.order import slice_indices
    from paceline.experiment.experiment import Experiment

    experiment = Experiment(global_batch_size=8, replicas=2, seed=7)
    order = paceline.order(50, seed=7, epoch=1)
    assert sorted(order) == [*range(50)]
    step, replica = (tf.constant(number, tf.int64) for number in (8, 1))
    epoch, indices = slice_indices(experiment, 50, step, replica)
    assert int(epoch) == 1
    assert indices.numpy().tolist() == order[2 * 8 + 4 : 2 * 8 + 8].tolist()


@pytest.mark.long
def test_a_flipped_bit_of_one_worker_is_named(tmp_path: Path):
    flags = ("train", "smoke", "--run-dir", "run", "--workers", "2", "--keep", "9")
    faults = {"PYTHONPATH": str(SUPPORT / "faults"), "FAULT": "1 flip 3"}
    more = {"environment": faults | {"FAULT_FOLDER": str(tmp_path)}}
    fine(paceline_program(*flags, cwd=tmp_path, **more))
    ended = paceline_here("verify", "run", "--all", cwd=tmp_path)
    assert ended.code == 1
    wanted = "step 10, replica 3, computed by worker 1 (local x 2, from step 0 on)"
    assert f"DIFFERENT\n{wanted}\n" in ended.out
    assert metrics_of(tmp_path / "run")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_auditor_finds_a_flipped_bit_while_the_training_runs(tmp_path: Path):
    flags = ("--workers", "2", "--epochs", "500", "--save-every", "1.5", "--evaluate-every", "0")
    faults = {"PYTHONPATH": str(SUPPORT / "faults"), "FAULT": "1 flip 3"}
    faults |= {"FAULT_FOLDER": str(tmp_path)}
    audit, train = ("verify", "run", "--follow", "--share", "1"), ("train", "smoke", *flags)
    run_dir = ("--run-dir", "run", "--keep", "500")
    with (
        program(*audit, cwd=tmp_path) as auditor,
        program(*train, *run_dir, cwd=tmp_path, environment=faults) as training,
    ):
        ended = auditor.wait()
        assert training.is_running()
        os.kill(training.pid, signal.SIGTERM)
        training.wait()
    assert ended.code == 1
    assert "DIFFERENT\nstep 10, replica 3, computed by worker 1 (local x 2" in ended.out
    assert [each["step"] for each in RunFolder(tmp_path / "run").audits.read()] == [12]


@pytest.mark.long
def test_a_run_that_moved_and_lost_workers_has_the_chain_of_one_process(
    uninterrupted: Path, tmp_path: Path
):
    """From one worker to three, of which one is killed, to Ray and back to two."""
    fault = {"PYTHONPATH": str(SUPPORT / "faults"), "FAULT": "2 before-exchange SIGKILL"}
    places = [
        (("--stop-at", "5"), {}),
        (("--stop-at", "13", "--workers", "3"), fault | {"FAULT_FOLDER": str(tmp_path)}),
        (("--stop-at", "18", "--on", "ray", "--workers", "2"), {}),
        (("--workers", "2"), {}),
    ]
    for more, environment in places:
        flags = ("train", "smoke", "--run-dir", "run", "--keep", "9", *more)
        fine(paceline_program(*flags, cwd=tmp_path, environment=environment))
    runs = [RunFolder(tmp_path / "run"), RunFolder(uninterrupted)]
    assert (tmp_path / "failed").exists()
    chains = [read_chain(run) for run in runs]
    assert chains[0].fault == chains[1].fault == ""
    assert result_of(runs[0].path)["chain"] == result_of(runs[1].path)["chain"]
    assert chains[0].signatures.keys() == chains[1].signatures.keys() == {*range(1, 25)}
    assert find_difference(*chains, 0, 24) is None
    wrong = Difference(20, 21, (3,))
    assert workers_of(runs[0], wrong).startswith(", computed by worker 1 (local x 2, from step 18")
    assert "the run does not say which worker of ray" in workers_of(
        runs[0], replace(wrong, step=16)
    )
    fine(paceline_here("verify", "run", "--all", cwd=tmp_path))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_thousand_replayed_steps_raise_no_false_alarm(tmp_path: Path):
    """Four places train 125 steps each, and 1, 2, 3 and 4 workers train all of them again."""
    small = ("--global-batch-size", "8", "--steps", "125", "--evaluate-every", "0")
    places = {"one": (), "three": ("--workers", "3"), "servers": ("--workers", "2", "--ps", "1")}
    for name, flags in (places | {"ray": ("--on", "ray", "--workers", "2")}).items():
        train = ("train", "smoke", "--run-dir", name, *small, "--save-every", "4", *flags)
        fine(paceline_program(*train, cwd=tmp_path, timeout_s=600))
        for workers in "1234":
            check = ("verify", name, "--all", "--workers", workers)
            ended = fine(paceline_program(*check, cwd=tmp_path, timeout_s=600))
            assert "checked 100 % of 125 steps" in ended.out
    ends = {result_of(tmp_path / name)["chain"] for name in (*places, "ray")}
    assert len(ends) == 1
