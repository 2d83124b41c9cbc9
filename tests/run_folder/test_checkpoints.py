"""Checkpoints: whole or not there, verified, and the right ones are kept."""

import errno
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from paceline.errors import UserError
from paceline.maths.state import State, StateLayout
from paceline.run_folder import checkpoint_file
from paceline.run_folder import checkpoints as checkpoint
from paceline.run_folder.checkpoint_file import RunIdentity
from paceline.run_folder.checkpoints import Checkpoints
from paceline.storage.files import replacing

LAYOUT = StateLayout(
    {
        "params": (("conv/kernel", (3, 3, 2)), ("scale", ())),
        "momentum": (("conv/kernel", (3, 3, 2)), ("scale", ())),
        "stats": (),
    }
)


def some_state(step: int, layout: StateLayout = LAYOUT) -> State:
    generator = np.random.default_rng(step)
    return State(
        step,
        {
            name: generator.normal(size=size).astype(np.float32)
            for name, size in layout.sizes().items()
        },
    )


def flip_a_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


layouts = st.dictionaries(
    st.sampled_from(["params", "momentum", "second", "stats", "ema"]),
    st.dictionaries(
        st.text("abc/_0é", min_size=1, max_size=8),
        st.lists(st.integers(0, 4), max_size=4).map(tuple),
        max_size=4,
    ).map(lambda variables: tuple(variables.items())),
    min_size=1,
).map(StateLayout)


@settings(max_examples=50, deadline=None)
@given(layout=layouts, step=st.integers(0, 10**9), data=st.data())
def test_a_state_of_any_layout_is_read_as_saved(
    layout: StateLayout, step: int, data: st.DataObject
) -> None:
    raw = {
        name: data.draw(st.binary(min_size=4 * size, max_size=4 * size))
        for name, size in layout.sizes().items()
    }
    state = State(step, {name: np.frombuffer(content, np.float32) for name, content in raw.items()})
    with tempfile.TemporaryDirectory() as folder:
        Checkpoints(folder, layout).save(state)
        read = Checkpoints(folder, layout).latest()
    assert read is not None
    assert read.step == step
    assert [(name, vector.tobytes()) for name, vector in read.vectors.items()] == list(raw.items())
    assert read.sha256() == state.sha256() == hashlib.sha256(b"".join(raw.values())).hexdigest()


def test_a_file_has_one_tensor_for_each_variable_and_records_its_origin(tmp_path: Path) -> None:
    state = some_state(123)
    path = Checkpoints(tmp_path, LAYOUT, identity=RunIdentity("12345678")).save(state)
    assert path == tmp_path / "step-00000123.safetensors"
    with safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == [
            "momentum/conv/kernel",
            "momentum/scale",
            "params/conv/kernel",
            "params/scale",
        ]
        np.testing.assert_array_equal(
            file.get_tensor("params/conv/kernel"), state.vectors["params"][:18].reshape(3, 3, 2)
        )
        assert file.get_tensor("params/scale").shape == ()
        metadata = file.metadata()
    assert metadata["step"] == "123"
    assert metadata["state_sha256"] == state.sha256()
    assert metadata["experiment"] == "12345678"
    assert metadata["vectors"] == '["params", "momentum", "stats"]'
    assert "numpy" in metadata["versions"]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere", LAYOUT).latest() is None
    assert Checkpoints(tmp_path / "nowhere", LAYOUT).best() is None
    assert not list(tmp_path.iterdir())


def test_the_newest_and_the_best_are_kept_and_a_resume_knows_the_best(tmp_path: Path) -> None:
    for step, metric in ((1, 0.5), (2, 0.9), (3, 0.7), (4, 0.9), (5, None), (6, math.nan)):
        Checkpoints(tmp_path, LAYOUT, keep=2).save(some_state(step), metric)
    resumed = Checkpoints(tmp_path, LAYOUT, keep=2)
    assert resumed.steps() == [2, 5, 6]
    best, latest = resumed.best(), resumed.latest()
    assert best is not None
    assert latest is not None
    assert best.sha256() == some_state(2).sha256()
    assert latest.sha256() == some_state(6).sha256()
    resumed.save(some_state(7), 0.95)
    assert resumed.steps() == [6, 7]


def test_a_given_step_is_loaded_and_a_missing_one_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT, keep=3)
    for step in (1, 2):
        checkpoints.save(some_state(step))
    assert checkpoints.load(1).sha256() == some_state(1).sha256()
    with pytest.raises(UserError, match=r"no checkpoint of step 3 .* there are: 1, 2"):
        checkpoints.load(3)


@pytest.mark.parametrize(
    "damage", ["truncated", "emptied", "flipped in the data", "flipped in the header", "renamed"]
)
def test_a_damaged_newest_falls_back_with_a_warning_that_names_it(
    tmp_path: Path, damage: str
) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT)
    checkpoints.save(some_state(1))
    newest = checkpoints.save(some_state(2))
    if damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-5])
    elif damage == "emptied":
        newest.write_bytes(b"")
    elif damage == "flipped in the data":
        flip_a_byte(newest, -7)
    elif damage == "flipped in the header":
        flip_a_byte(newest, 8)
    else:
        newest = newest.rename(tmp_path / "step-00000003.safetensors")
    with pytest.warns(UserWarning, match=newest.name):
        state = Checkpoints(tmp_path, LAYOUT).latest()
    assert state is not None
    assert state.step == 1
    assert state.sha256() == some_state(1).sha256()
    with pytest.raises(UserError, match="damaged"):
        Checkpoints(tmp_path, LAYOUT).load(int(newest.name[5:13]))


def test_a_damaged_one_is_never_kept_in_place_of_a_good_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT, keep=2)
    checkpoints.save(some_state(10), 0.5)
    flip_a_byte(checkpoints.save(some_state(20), 0.9), -1)
    warned: list[str] = []
    resumed = Checkpoints(tmp_path, LAYOUT, keep=1, warn=warned.append)
    assert resumed.latest() is not None
    assert len(warned) == 1
    resumed.save(some_state(15))
    assert resumed.steps() == [10, 15]


def test_only_damaged_ones_are_as_none(tmp_path: Path) -> None:
    warned: list[str] = []
    checkpoints = Checkpoints(tmp_path, LAYOUT, warn=warned.append)
    flip_a_byte(checkpoints.save(some_state(1), 0.5), -1)
    assert checkpoints.latest() is None
    assert checkpoints.best() is None
    assert warned


def test_reading_leaves_the_unfinished_file_of_another_process_alone(tmp_path: Path) -> None:
    Checkpoints(tmp_path, LAYOUT).save(some_state(1))
    (tmp_path / ".step-00000002.safetensors.abc.tmp").write_bytes(b"half")
    before = names(tmp_path)
    assert Checkpoints(tmp_path, LAYOUT).latest() is not None
    assert names(tmp_path) == before


def no_space(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def full_after_a_part(path: Path) -> Iterator[IO[bytes]]:
    with replacing(path) as file:
        file.write(b"a part")
        file.flush()
        no_space()
        yield file


@pytest.mark.parametrize(
    ("owner", "name", "failing"),
    [
        (checkpoint, "replacing", full_after_a_part),
        (os, "fsync", no_space),
        (os, "replace", no_space),
    ],
    ids=["write", "fsync", "rename"],
)
def test_a_full_disk_keeps_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, failing: Any
) -> None:
    checkpoints = Checkpoints(tmp_path, LAYOUT, keep=1)
    checkpoints.save(some_state(1))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        with pytest.raises(UserError, match=r"disk is full.* step 1 is the last good one") as error:
            checkpoints.save(some_state(2))
    assert "\n" not in str(error.value)
    assert names(tmp_path) == ["step-00000001.safetensors"]
    assert checkpoints.load(1).sha256() == some_state(1).sha256()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ((("conv/kernel", (3, 3, 3)), ("scale", ())), r"conv/kernel' is .*2\), in the .* 3, 3\)"),
        ((("conv/kernel", (3, 3, 2)), ("bias", (1,))), "'params/bias' is missing, in the model"),
        ((("conv/kernel", (3, 3, 2)),), r"'params/scale' is \(\), in the model missing"),
    ],
)
def test_a_checkpoint_of_another_model_names_the_first_difference(
    tmp_path: Path, variables: tuple, message: str
) -> None:
    Checkpoints(tmp_path, LAYOUT).save(some_state(1))
    with pytest.raises(UserError, match=message):
        Checkpoints(tmp_path, StateLayout(LAYOUT.parts | {"params": variables})).latest()


def test_a_newer_format_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file, "FORMAT", checkpoint_file.FORMAT + 1)
        Checkpoints(tmp_path, LAYOUT).save(some_state(1))
    with pytest.raises(UserError, match="newer Paceline"):
        Checkpoints(tmp_path, LAYOUT).latest()
