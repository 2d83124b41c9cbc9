"""Two hosts, as network namespaces: the same bits, and a link that is cut. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.link import ADDRESSES, Link, cut, two_hosts, why_not

from helpers import Program, program, result_of, tf_config, wait_until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")

PORT, STALL_S = 5000, 12.0
CLUSTER = {"chief": [f"{ADDRESSES[0]}:{PORT}"], "worker": [f"{ADDRESSES[1]}:{PORT}"]}
SLOWLY = """
import time
from pathlib import Path

def slowly(step, metrics):
    Path(__file__).with_name("reached").write_text(str(step))
    time.sleep(1)
"""


def start(
    stack: ExitStack, hosts: tuple[str, str], folder: Path, *flags: str
) -> tuple[Program, Program]:
    """The chief and the worker, each on its host and with a disk of its own."""
    programs = []
    for host, role in zip(hosts, CLUSTER, strict=True):
        (folder / role).mkdir()
        own = flags if role == "chief" else ()
        inside, environment = ("ip", "netns", "exec", host), tf_config(CLUSTER, role)
        command = ("train", "smoke", "--stall-timeout", str(STALL_S), *own)
        programs.append(
            stack.enter_context(
                program(*command, cwd=folder / role, environment=environment, inside=inside)
            )
        )
    return programs[0], programs[1]


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
    (tmp_path / "own.py").write_text(SLOWLY)
    with two_hosts() as hosts, ExitStack() as stack:
        chief, worker = start(stack, hosts, tmp_path, "--actions", str(tmp_path / "own.py:slowly"))
        wait_until(lambda: (tmp_path / "reached").exists() or not chief.is_running())
        cut(hosts[1])
        began = time.monotonic()
        ended = [chief.wait(), worker.wait()]
        took = time.monotonic() - began
    assert [each.code for each in ended] == [1, 1], ended
    assert took < 2 * STALL_S + 15
    for each, other in zip(ended, reversed(ADDRESSES), strict=True):
        assert f"no answer from {other}:{PORT}" in each.err.splitlines()[-1]


@pytest.mark.parametrize("link", [Link(50, 0.01), Link(200)], ids=str)
def test_the_link_of_the_benchmark_has_the_rate_and_the_delay_that_it_is_said_to_have(
    link: Link,
) -> None:
    """Half a second of bytes one way, after one byte there and back."""
    size = int(link.mbit_per_s * 1e6 / 8 / 2)
    serve = f"""
import socket
server = socket.create_server(("{ADDRESSES[1]}", {PORT})); print("ready", flush=True)
peer = server.accept()[0]; peer.sendall(peer.recv(1)); left = {size}
while left: left -= len(peer.recv(1 << 20))
peer.sendall(b"x")
"""
    ask = f"""
import socket, time
peer = socket.create_connection(("{ADDRESSES[1]}", {PORT}))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
began = time.perf_counter(); peer.sendall(b"x"); peer.recv(1); print(time.perf_counter() - began)
began = time.perf_counter()
peer.sendall(bytes({size}))
peer.recv(1)
print(time.perf_counter() - began)
"""
    with two_hosts(link) as (here, there):
        command = ("ip", "netns", "exec", there, sys.executable, "-c", serve)
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as server:
            assert server.stdout
            server.stdout.readline()
            asked = ("ip", "netns", "exec", here, sys.executable, "-c", ask)
            answer = subprocess.run(
                asked, capture_output=True, text=True, check=True, timeout=60
            ).stdout
            server.wait(10)
    round_trip_s, transfer_s = map(float, answer.split())
    # the machine may be busy: it is never quicker than it is said to be, and not much slower
    assert 2 * link.delay_s <= round_trip_s < 2 * link.delay_s + 0.5
    assert 0.3 * link.mbit_per_s < size * 8 / 1e6 / transfer_s < 1.2 * link.mbit_per_s
