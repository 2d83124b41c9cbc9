"""The lease as a model: chiefs that stop, wake up and crash between any two requests to storage.

The requests of each chief wait at a gate. Rules let one of them through, or end the chief there, so
that hypothesis finds the order in which two or three chiefs write. After every single request, what
a reader sees must be the work of one chief after the other.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paceline.run_folder.remote_run import RemoteRun, is_checkpoint
from paceline.storage import lease, remote
from paceline.storage.lease import Lease, read_lease
from paceline.storage.lock import LeaseLost
from paceline.storage.remote import StorageFault, Store

WAIT_S = 60.0
CHANGES = ("put", "swap", "remove")


class Crash(BaseException):
    """A chief ends at once, as by SIGKILL."""


class Gate:
    """Holds the thread of a chief before each request until it is let through."""

    def __init__(self) -> None:
        self.happened: queue.Queue[str] = queue.Queue()
        self._orders: queue.Queue[str] = queue.Queue()
        self.loses_answer = False

    def arrive(self) -> None:
        self.happened.put("waits")
        if self._orders.get(timeout=WAIT_S) == "crash":
            raise Crash

    def order(self, what: str) -> str:
        """Let the thread go on, or crash it; return whether it then `waits` again or is `done`."""
        self._orders.put(what)
        return self.happened.get(timeout=WAIT_S)


def gated(name: str) -> Callable[..., Any]:
    """Return a method of a Store that waits at a gate; the answer to a change may be lost."""
    method = getattr(Store, name)

    def call(store: GatedStore, *arguments: Any) -> Any:
        store.gate.arrive()
        answer = method(store, *arguments)
        if name in CHANGES and store.gate.loses_answer:
            store.gate.loses_answer = False
            raise StorageFault("the answer is lost")
        return answer

    return call


class GatedStore(Store):
    """Makes every request at a gate."""

    def __init__(self, url: str, gate: Gate) -> None:
        super().__init__(url)
        self.gate = gate

    files, read_versioned, get = gated("files"), gated("read_versioned"), gated("get")
    put, swap, remove = gated("put"), gated("swap"), gated("remove")


class Chief:
    """One process that wants to train. Each of its actions runs in a thread, request by request."""

    def __init__(self, url: str, folder: Path) -> None:
        self.gate = Gate()
        self.run = RemoteRun(GatedStore(url, self.gate), folder)
        self.folder = folder
        self.state = "new"
        self.busy = False
        self.error: BaseException | None = None
        folder.mkdir()

    def begin(self, action: Callable[[], None]) -> None:
        """Begin an action in a thread; it stops before its first request."""

        def body() -> None:
            try:
                action()
            except BaseException as error:
                self.error = error
                self.state = "ended"
            self.gate.happened.put("done")

        threading.Thread(target=body, daemon=True).start()
        self.busy = self.gate.happened.get(timeout=WAIT_S) == "waits"

    def step(self, order: str = "go") -> None:
        self.busy = self.gate.order(order) == "waits"

    def start(self) -> None:
        self.run.lock("", lambda message: None)
        self.run.pull()
        self.run.refresh()
        if (self.folder / "result.json").exists():
            self.run.unlock()  # the run is finished: there is nothing to do
            self.state = "ended"
        else:
            self.state = "trains"

    def train(self) -> None:
        """Train on from the last checkpoint; keep two checkpoints."""
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        before = sorted((self.folder / "checkpoints").iterdir())
        step = int(before[-1].stem.removeprefix("step-")) + 1 if before else 1
        self.write("config.json", step)
        self.write("metrics.jsonl", step)
        self.write(f"checkpoints/step-{step:08d}.safetensors", step)
        for old in before[:-1]:
            old.unlink()
        self.run.publish()

    def finish(self) -> None:
        self.write("result.json", 0)
        self.run.publish()
        self.run.unlock()
        self.state = "ended"

    def beat(self) -> None:
        with contextlib.suppress(StorageFault):  # as the thread does that beats: it tries again
            self.run.beat()

    def write(self, name: str, step: int) -> None:
        if name != "config.json" or not (self.folder / name).exists():
            facts = {"epoch": self.run.holder.lease.epoch, "step": step, "unique": uuid.uuid4().hex}
            (self.folder / name).write_text(json.dumps(facts))


class RemoteLeases(RuleBasedStateMachine):
    """Up to three chiefs with one folder on S3. A lease may be taken over at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"s3://bucket/model-{uuid.uuid4().hex}"
        self.outside = Store(self.url)
        self.scratch = Path(tempfile.mkdtemp(prefix="paceline-model-"))
        self.chiefs: list[Chief] = []
        self.seen = Lease()
        self.contents: dict[str, bytes] = {}

    def teardown(self) -> None:
        try:
            for chief in self.chiefs:
                while chief.busy:
                    chief.step("crash")
            self.resume()
        finally:
            shutil.rmtree(self.scratch)

    def resume(self) -> None:
        """Whatever happened, a new chief can take over and finds the last checkpoint whole."""
        local = self.scratch / "last"
        local.mkdir()
        run = RemoteRun(self.outside, local)
        run.lock("", lambda message: None)
        run.pull()
        run.refresh()
        leased = {name: self.contents[key] for name, key in self.seen.files.items()}
        assert {name: (local / name).read_bytes() for name in leased} == leased
        assert run.holder.lease.epoch > self.seen.epoch
        run.unlock()

    def pick(self, number: int, **wanted: Any) -> Chief | None:
        fitting = [
            chief
            for chief in self.chiefs
            if all(getattr(chief, name) == value for name, value in wanted.items())
        ]
        return fitting[number % len(fitting)] if fitting else None

    @initialize()
    def train_once(self) -> None:
        self.start_another()
        self.let_requests_through(0, 1000)
        self.begin(0, "train")
        self.let_requests_through(0, 1000)

    @precondition(lambda self: sum(chief.state != "ended" for chief in self.chiefs) < 3)
    @rule()
    def start_another(self) -> None:
        chief = Chief(self.url, self.scratch / str(len(self.chiefs)))
        self.chiefs.append(chief)
        chief.begin(chief.start)

    @precondition(lambda self: self.pick(0, busy=False, state="trains"))
    @rule(number=st.integers(0, 2), action=st.sampled_from(["train", "train", "finish", "beat"]))
    def begin(self, number: int, action: str) -> None:
        if chief := self.pick(number, busy=False, state="trains"):
            chief.begin(getattr(chief, action))

    @precondition(lambda self: self.pick(0, busy=True))
    @rule(number=st.integers(0, 2), count=st.integers(1, 6) | st.just(1000))
    def let_requests_through(self, number: int, count: int) -> None:
        """One chief runs while the others are stopped wherever they are."""
        if chief := self.pick(number, busy=True):
            while chief.busy and count:
                chief.step()
                count -= 1
                self.what_is_seen_is_the_work_of_one_chief_after_the_other()

    @precondition(lambda self: self.pick(0, busy=True))
    @rule(number=st.integers(0, 2))
    def lose_the_next_answer(self, number: int) -> None:
        if chief := self.pick(number, busy=True):
            chief.gate.loses_answer = True

    @precondition(lambda self: self.pick(0, busy=True))
    @rule(number=st.integers(0, 2))
    def crash(self, number: int) -> None:
        if chief := self.pick(number, busy=True):
            while chief.busy:
                chief.step("crash")
            chief.state = "ended"

    @invariant()
    def what_is_seen_is_the_work_of_one_chief_after_the_other(self) -> None:
        now, before = read_lease(self.outside)[0], self.seen
        self.seen = now
        assert now.epoch in (before.epoch, before.epoch + 1), "the number only grows"
        changed = {n for n, key in now.files.items() if before.files.get(n) != key}
        removed = {name for name in before.files if name not in now.files}
        if now.epoch != before.epoch:
            assert now.files == before.files, "who takes over changes nothing"
        for name, key in now.files.items():
            content = self.outside.read(key) if name in changed else self.contents[key]
            assert content is not None, f"{name} is named, but gone"
            assert self.contents.setdefault(key, content) == content, "no key is written twice"
            if name in changed:
                assert json.loads(content)["epoch"] == now.epoch, f"{name} is of an earlier chief"
        assert all(map(is_checkpoint, removed))
        assert "result.json" not in before.files or not changed, "finished stays finished"
        self._steps_fit(now)

    def _steps_fit(self, now: Lease) -> None:
        steps = {name: json.loads(self.contents[key])["step"] for name, key in now.files.items()}
        saved = [step for name, step in steps.items() if is_checkpoint(name)]
        assert max(saved, default=0) == steps.get("metrics.jsonl", 0), "one step, one publication"

    @invariant()
    def what_is_named_is_there(self) -> None:
        listed = self.outside.files()
        assert {key for key in self.seen.files.values() if key not in listed} == set()

    @invariant()
    def whoever_ends_is_told_who_took_over(self) -> None:
        for chief in self.chiefs:
            if isinstance(chief.error, LeaseLost):
                assert "has taken over" in str(chief.error)
            else:
                assert chief.error is None or isinstance(chief.error, Crash), chief.error


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take over without a wait, as if the holder had been stopped for long enough."""
    monkeypatch.setattr(lease, "LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(remote, "PATIENCE_S", 5.0)
    monkeypatch.setattr(remote, "PARALLEL", 1)


def limits(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
def test_no_order_of_requests_shows_the_writes_of_two_chiefs(s3: str, at_once: None) -> None:
    run_state_machine_as_test(RemoteLeases, settings=limits(12, 20))


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_no_order_of_requests_shows_the_writes_of_two_chiefs_many_times(
    s3: str, at_once: None
) -> None:
    run_state_machine_as_test(RemoteLeases, settings=limits(300, 50))
