"""A proxy between a training and S3 that is good, slow, refusing, or answering 503."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

FAILURE = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: 39\r\n\r\n<Error><Code>SlowDown</Code></Error>   "
)


class Proxy:
    """Listens at all addresses of this host; `mode` is good, slow, refusing or failing."""

    def __init__(self, target: int) -> None:
        self.mode = "good"
        self._target = target
        self._listener = socket.create_server(("", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # wakes up the thread that waits for connections
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.mode == "refusing":
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server, answer_to=client)
                back.join()

    def _copy(
        self, source: socket.socket, target: socket.socket, answer_to: socket.socket | None = None
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.mode == "refusing":
                    break
                if self.mode == "failing" and answer_to:
                    answer_to.sendall(FAILURE)
                    break
                if self.mode == "slow":
                    time.sleep(0.3)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
