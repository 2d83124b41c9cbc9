"""What each section of the page shows: charts, notes and rows. The templates only lay it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import flatten
from paceline.extras.report.charts import Chart, Drawing, Line
from paceline.extras.report.formats import (
    duration,
    letter,
    number,
    shorten,
    thousands,
    whole_percent,
)
from paceline.extras.report.run_data import Points, RunData

Rows = dict[str, list[Any]]
"""A name, and its value in each run."""
MEASURES = (
    ("Loss", "loss", number, {"log": True}),
    ("Accuracy", "accuracy", whole_percent, {"most": 1.0}),
)


def same_bits(runs: Sequence[RunData]) -> list[str]:
    """Return a note for each group of finished runs with the same final state."""
    by_digest: dict[str, list[str]] = {}
    for i, run in enumerate(runs):
        if run.finished and run.digest:
            by_digest.setdefault(run.digest, []).append(letter(i, len(runs)))
    groups = [names for names in by_digest.values() if len(names) > 1]
    return [f"{', '.join(names[:-1])} and {names[-1]} ended with the same bits" for names in groups]


def learning_charts(runs: Sequence[RunData]) -> list[Drawing]:
    """Draw one run with its train and test curves together, several runs in charts of each."""
    charts = []
    for title, name, show, more in MEASURES:
        train = [run.curve(name) for run in runs]
        held_out = [run.curve(f"{run.split}_{name}") for run in runs]
        if len(runs) == 1:
            lines = [Line("train", train[0], 1), Line(runs[0].split, held_out[0], 0, marked=True)]
            charts.append(Chart(title, lines, "epoch", show, **more))
        else:
            splits = "/".join(dict.fromkeys(run.split for run in runs))
            lines = _lines(held_out, marked=True)
            charts.append(Chart(f"{title}, {splits}", lines, "epoch", show, **more))
            charts.append(Chart(f"{title}, train", _lines(train), "epoch", show, **more))
    return [Drawing(chart) for chart in charts]


def rate_charts(runs: Sequence[RunData]) -> list[Drawing]:
    """Draw learning rate, speed and, if there is any, the staleness of gradients."""
    rates = _lines([run.curve("learning_rate") for run in runs])
    speeds = _lines([run.speeds() for run in runs])
    stale = [run.curve("staleness_mean") for run in runs]
    charts = [
        Chart("Learning rate", rates, "epoch", number, from_zero=True),
        Chart(
            "Images per second",
            speeds,
            "minutes of training",
            thousands,
            from_zero=True,
            events=_events(runs),
        ),
    ]
    if any(stale):
        charts.append(Chart("Mean staleness", _lines(stale), "epoch", number, from_zero=True))
    return [Drawing(chart) for chart in charts]


def _lines(curves: Sequence[Points], marked: bool = False) -> list[Line]:
    return [Line(letter(i, len(curves)), points, i, marked) for i, points in enumerate(curves)]


def _events(runs: Sequence[RunData]) -> list[tuple[float, str]]:
    """Return minute and text of each start and event; a run's first start only if it is alone."""
    events = []
    for i, run in enumerate(runs):
        starts = [start for start in run.starts() if start.step or len(runs) == 1]
        texts = [(start.minute, start.workers_text) for start in starts]
        texts += [(minute, text) for _, minute, text in run.events()]
        name = letter(i, len(runs))
        events += [(minute, shorten(f"{name} {text}".strip(), 24)) for minute, text in texts]
    return events


def start_notes(runs: Sequence[RunData]) -> list[str]:
    """Describe each run's starts and events in words."""
    notes = []
    for i, run in enumerate(runs):
        name = letter(i, len(runs))
        starts = [
            f"at step {start.step:,} ({duration(start.minute)}) with {start.workers_text}"
            if start.step
            else f"with {start.workers_text}"
            for start in run.starts()
        ]
        if starts:
            notes.append(f"{name} started {', again '.join(starts)}.".strip().capitalize())
        for step, minute, text in run.events():
            notes.append(f"{name} step {step:,} ({duration(minute)}): {text}".strip())
    return notes


def all_settings(runs: Sequence[RunData]) -> Rows:
    """Return every setting of the runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return {name.replace("_", "-"): [run.settings.get(name) for run in runs] for name in names}


def different_settings(runs: Sequence[RunData]) -> Rows:
    """Return what differs between the runs, or for a single run from the defaults."""
    rows = all_settings(runs)
    if len(runs) > 1:
        return {name: values for name, values in rows.items() if values != values[:1] * len(runs)}
    defaults = flatten(Experiment().to_json())
    changed = [name for name in rows if rows[name][0] != defaults.get(name.replace("-", "_"))]
    return {name: rows[name] for name in changed}


def machine_facts(runs: Sequence[RunData]) -> Rows:
    """Return place, hardware, versions and sizes of the data at each run's last start."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for each in facts for name in each)
    return {name: [each.get(name) for each in facts] for name in names}


def _facts(run: RunData) -> dict[str, str]:
    last = run.start_records[-1] if run.start_records else {}
    machine = last.get("machine") or {}
    where = {
        "place": last.get("place"),
        "workers": last.get("workers"),
        "host": machine.get("host"),
        "processor": machine.get("cpu"),
        "cores": machine.get("cores"),
        "memory, GB": machine.get("memory_gb"),
    }
    sizes = {f"{n} images": f"{size:,}" for n, size in run.data.items() if isinstance(size, int)}
    known = {name: str(value) for name, value in where.items() if value is not None}
    return known | (last.get("versions") or run.versions) | sizes
