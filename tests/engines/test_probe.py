"""Tasks that start one after another wait for each other, and find who does not answer."""

import socket
import threading
import time

import pytest

from helpers import free_addresses, wait_until
from paceline.engines import probe
from paceline.errors import AddressTaken, UserError
from paceline.job import Cluster


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_tasks_that_come_one_after_another_meet_in_any_order(order: tuple[int, ...]) -> None:
    addresses, met = tuple(free_addresses(3)), dict[int, float]()

    def arrive(index: int) -> None:
        probe.wait_for_tasks(Cluster(addresses, index))
        with socket.create_server(("127.0.0.1", port_of(addresses[index]))) as server:
            met[index] = time.monotonic()  # now TensorFlow's server answers at the address
            server.settimeout(3.0)
            while len(met) < 3:
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    return
                with connection:
                    connection.recv(64)
                    connection.sendall(b"\0\0\6\4")  # the beginning of its settings

    threads = [threading.Thread(target=arrive, args=(index,)) for index in order]
    for thread in threads:
        assert not met, "nobody goes on before the last one has come"
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join(10.0)
    assert set(met) == {0, 1, 2}


def port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


def test_a_task_whose_port_another_program_has_says_so() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        own = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(AddressTaken, match=f"cannot listen at {own}"):
            probe.wait_for_tasks(Cluster((own, *free_addresses(1)), 0))


def test_the_silent_of_several_addresses_are_found() -> None:
    (absent,) = free_addresses(1)
    assert probe.find_silent([absent]) == [absent]
    assert probe.find_silent([]) == []


def test_a_task_that_cannot_train_tells_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TELL_S", 2.0)
    own, other = free_addresses(2)
    telling = threading.Thread(target=probe.tell, args=(own, "there is no folder data"))
    telling.start()
    reason = f"the worker at {own} cannot train: there is no folder data"
    wait_until(lambda: probe.ask(own))
    with pytest.raises(UserError, match=reason):
        probe.find_silent([own, other])
    telling.join()
    assert probe.find_silent([own]) == [own]


def test_a_web_server_at_the_port_of_a_worker_is_not_a_worker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert probe.find_silent([address]) == [address]
