"""Two hosts with a slow link, ResNet-56: averaged weights against gradients. Root only.

Weights are averaged every ten steps, gradients each step.
"""

import sys

from benchmarks.harness import Contender, ContenderFailed
from benchmarks.images import cifar10_folder
from benchmarks.link import ADDRESSES, Link, two_hosts, why_not
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles, ratio, rows

ROUND_STEPS = 10
PORTS = {1: 5101, ROUND_STEPS: 5102}


def contender(hosts: tuple[str, str], folder: str, round_steps: int) -> Contender:
    workers = [
        w
        for host, address in zip(hosts, ADDRESSES, strict=True)
        for w in (host, f"{address}:{PORTS[round_steps]}")
    ]
    name = "gradients-each-step" if round_steps == 1 else f"weights-every-{round_steps}"
    of_model = ("56", folder, str(round_steps))
    return Contender(
        name, (sys.executable, "-m", "benchmarks.contender_workers", *of_model, *workers)
    )


def measure(link: Link, settings: Settings) -> SuiteResult:
    if reason := why_not():
        raise ContenderFailed(f"two hosts cannot be simulated here: {reason}")
    with cifar10_folder() as (folder, note), two_hosts(link) as hosts:
        contenders = [contender(hosts, folder, round_steps) for round_steps in PORTS]
        measured = settings.alternate(contenders)
    gradients, weights = (measured[each.name] for each in contenders)
    figures = [
        Figure(f"images/s, {weights.name} to {gradients.name}", ratio(weights, gradients), "x"),
        *(
            Figure(f"images/s, {m.name}", quartiles(turn.images_per_s for turn in m.turns), "")
            for m in (gradients, weights)
        ),
    ]
    notes = [note, f"the link, each way: {link}; both hosts share the cores of this machine"]
    if link.delay_s:
        notes.append(
            "the rate is set in the kernel (tbf); the delay is made by a process between two TUN "
            "devices, which needs no netem"
        )
    return SuiteResult(
        f"ResNet-56 on two hosts, {link}",
        figures,
        notes,
        gradients.name,
        rows(measured, gradients.name),
    )


def measure_5_mbit(settings: Settings) -> SuiteResult:
    return measure(Link(5, 0.01), settings)


def measure_50_mbit(settings: Settings) -> SuiteResult:
    return measure(Link(50, 0.01), settings)


def measure_1_gbit(settings: Settings) -> SuiteResult:
    return measure(Link(1000), settings)
