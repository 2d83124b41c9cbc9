"""What runs say that they computed (`chain`), and where two of them part."""

import base64
from dataclasses import dataclass, field

import numpy as np

from paceline.errors import UserError
from paceline.experiment.plan import Plan, build_plan
from paceline.extras.proof.chain import first_link, next_link
from paceline.maths.sums import divided_tree
from paceline.run_folder.folder import RunFolder


@dataclass(frozen=True)
class Chain:
    """What a run says that it computed."""

    replicas: int
    states: dict[int, str] = field(default_factory=dict)
    """Digest of the state after each recorded step."""
    signatures: dict[int, np.ndarray] = field(default_factory=dict)
    """Of each step, one for each replica."""
    fault: str = ""
    """Why it cannot have been written by a training; empty if it can."""

    @property
    def last(self) -> int:
        """The last recorded step."""
        return max(self.states, default=0)


def read_chain(run: RunFolder, whole: bool = True) -> Chain:
    """Return the chain of a run; of an entry of the zoo, the two digests of its row. With `whole`,
    it must begin at step 0 without a gap."""
    replicas = run.experiment().replicas
    if is_entry(run):
        from paceline.extras.zoo import find_row

        row = find_row(run.path.name)
        return Chain(replicas, {row.first_steps: row.first_sha256, row.step: row.state_sha256})
    states, signatures, links = dict[int, str](), dict[int, np.ndarray](), dict[int, str]()
    try:
        for record in run.chain.read():
            step, content = record["step"], base64.b64decode(record["signatures"])
            rows = np.frombuffer(content, "<u2").reshape(-1, replicas)
            signatures |= dict(enumerate(rows, step - len(rows) + 1))
            if "link" in record:
                states[step], links[step] = record["state"], record["link"]
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{run.chain.path} is damaged: {error}; restore it from a copy") from error
    return Chain(replicas, states, signatures, _fault(run, states, links) if whole else "")


def _fault(run: RunFolder, states: dict[int, str], links: dict[int, str]) -> str:
    """Return why no training has written this chain; empty if one can have written it."""
    link, plan = first_link(run), plan_of(run)
    for step in range(1, max(states, default=0) + 1):
        if plan.records_at(step) and step not in states:
            return f"the digest of step {step:,} is missing"
        if step in states:
            link = next_link(link, step, states[step])
            if link != links[step]:
                return f"the link of step {step:,} does not follow from the one before it"
    result = run.read_result() or {}
    if result.get("finished") and result.get("chain", link) != link:
        return "the chain in result.json is not the end of chain.jsonl"
    return ""


def plan_of(run: RunFolder) -> Plan:
    """Return the plan of a run."""
    return build_plan(run.experiment(), run.data_facts()["train"])


def is_entry(run: RunFolder) -> bool:
    """Return whether a run is an entry of the zoo, which has digests of two steps."""
    return (run.path / "zoo.json").is_file()


@dataclass(frozen=True)
class Difference:
    """Where two chains part: in a step after `after`, at the latest in `step`."""

    after: int
    step: int
    replicas: tuple[int, ...]
    """Those whose signatures differ in `step`; none if only the state after it does."""
    all_replicas: bool = False

    def __str__(self) -> str:
        if self.after < self.step - 1:
            return f"a step after {self.after:,}, at the latest step {self.step:,}"
        if self.all_replicas:
            first = f"the state before step {self.step:,}, with which all replicas began"
            return first if self.step > 1 else f"step {self.step}, all replicas"
        if not self.replicas:
            return f"step {self.step:,}, the update after the sum over the replicas"
        numbers = ", ".join(map(str, self.replicas))
        return f"step {self.step:,}, replica{'s' * (len(self.replicas) > 1)} {numbers}"


def find_difference(one: Chain, other: Chain, first: int, last: int) -> Difference | None:
    """Return where two chains part in the steps (first, last]; both know the state after `first`. A
    signature can be equal by chance, one in 65,521 times; a digest cannot."""
    states = [s for s in sorted(one.states.keys() & other.states.keys()) if first < s <= last]
    signed = (
        one.signatures.keys() & other.signatures.keys() if one.replicas == other.replicas else ()
    )
    rows = [step for step in sorted(signed) if first < step <= last]
    wrong = [s for s in states if one.states[s] != other.states[s]]
    wrong += [s for s in rows if any(one.signatures[s] != other.signatures[s])]
    if not wrong:
        return None
    step = min(wrong)
    after = max([first, *(each for each in (*states, *rows) if each < step)])
    differs = one.signatures[step] != other.signatures[step] if step in rows else np.zeros(0)
    replicas = tuple(np.flatnonzero(differs).tolist())
    return Difference(after, step, replicas, len(replicas) == one.replicas > 1)


def workers_of(run: RunFolder, difference: Difference) -> str:
    """Return the end of a sentence: which workers computed the replicas that differ, if known."""
    starts = [start for start in run.starts.read() if start["step"] < difference.step]
    if not starts or not difference.replicas or difference.all_replicas:
        return ""
    start, replicas = starts[-1], run.experiment().replicas
    if start.get("engine") != "collective":
        return f", the run does not say which worker of {start['place']} computed them"
    shares = enumerate(divided_tree(replicas, start["workers"]))
    found = [
        f"worker {index}"
        for index, spans in shares
        if any(spans[0][0] <= each < spans[-1][1] for each in difference.replicas)
    ]
    where = f"{start['place']} x {start['workers']}, from step {start['step']:,} on"
    return f", computed by {' and '.join(found)} ({where})"
