"""Two hosts, as network namespaces: the same bits, and a link that is cut. Needs root."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.link import ADDRESSES, cut, two_hosts, why_not

from helpers import Program, program, result_of, tf_config, wait_until, write_own_code

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")

PORT = 5000
CLUSTER = {"chief": [f"{ADDRESSES[0]}:{PORT}"], "worker": [f"{ADDRESSES[1]}:{PORT}"]}


def start(stack: ExitStack, hosts: tuple[str, str], folder: Path, *flags: str) -> list[Program]:
    """The chief and the worker, each on its host and with its own disk."""
    programs = list[Program]()
    for host, role in zip(hosts, CLUSTER, strict=True):
        (folder / role).mkdir()
        own = flags if role == "chief" else ()
        inside, environment = ("ip", "netns", "exec", host), tf_config(CLUSTER, role)
        command = ("train", "smoke", "--stall-timeout", "12", *own)
        running = program(*command, cwd=folder / role, environment=environment, inside=inside)
        programs.append(stack.enter_context(running))
    return programs


@pytest.mark.slow
def test_two_hosts_give_the_same_bits_as_one_process(uninterrupted: Path, tmp_path: Path) -> None:
    with two_hosts() as hosts, ExitStack() as stack:
        chief, worker = start(stack, hosts, tmp_path)
        ended = [chief.wait(), worker.wait()]
    assert [each.code for each in ended] == [0, 0], ended
    assert (
        result_of(tmp_path / "chief/run")["state_sha256"]
        == result_of(uninterrupted)["state_sha256"]
    )
    assert not list((tmp_path / "worker").iterdir()), "only the chief writes"


@pytest.mark.long
def test_both_hosts_end_and_name_the_other_when_their_link_is_cut(tmp_path: Path) -> None:
    slowly = ("--actions", f"{write_own_code(tmp_path)}:slowly")
    with two_hosts() as hosts, ExitStack() as stack:
        chief, worker = start(stack, hosts, tmp_path, *slowly)
        wait_until(lambda: (tmp_path / "reached").exists() or not chief.is_running())
        cut(hosts[1])
        ended = [chief.wait(), worker.wait()]
    assert [each.code for each in ended] == [1, 1], ended
    for each, other in zip(ended, reversed(ADDRESSES), strict=True):
        assert f"at {other}:{PORT} failed: no answer" in each.err.splitlines()[-1]
