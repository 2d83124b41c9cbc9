"""Headless Chromium, driven by its DevTools protocol over a pipe.

with Browser(folder) as browser:
    page = browser.open(file, width=390, dark=True)
    page.evaluate("document.title"); page.errors; page.requests
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import TIMEOUT_S

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
needs_browser = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium here: `apt-get install chromium`, or make setup-all as root"
)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-sync "
    "--disable-dev-shm-usage --disable-background-networking --disable-component-update "
    "--remote-debugging-pipe about:blank"
)

Event = dict[str, Any]


class Browser:
    """Ends with the `with` block, with all its processes."""

    def __init__(self, profile: Path) -> None:
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()

        def connect() -> None:  # the protocol's pipe is on descriptors 3 and 4
            first, second = os.dup(read_commands), os.dup(write_answers)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [CHROMIUM, f"--user-data-dir={profile}", *FLAGS.split()],
            preexec_fn=connect,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._number, self.events = b"", 0, list[Event]()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def open(self, place: Path | str, width: int, dark: bool = False) -> Page:
        """Open a file or a URL on a screen of this width; a narrow one is a phone."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call(
            "Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri()
        )
        loaded = {"method": "Page.loadEventFired", "sessionId": session}
        self._wait_for(lambda event: loaded.items() <= event.items())
        return page

    def call(self, method: str, session: Event | None = None, **parameters: Any) -> Event:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (session or {})
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = self._wait_for(lambda event: event.get("id") == self._number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _wait_for(self, wanted: Callable[[Event], bool]) -> Event:
        while True:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                self.events.append(json.loads(text))
                if wanted(self.events[-1]):
                    return self.events[-1]
            ready, _, _ = select.select([self._answers], [], [], TIMEOUT_S)
            assert ready, "the browser does not answer"
            chunk = os.read(self._answers, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, {"sessionId": session}

    def call(self, method: str, **parameters: Any) -> Event:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _events(self, *methods: str) -> list[Event]:
        events = [each for each in self._browser.events if self._session.items() <= each.items()]
        return [each["params"] for each in events if each.get("method") in methods]

    @property
    def requests(self) -> list[str]:
        """Return the URLs that the page requested, without itself and its data URLs."""
        urls = [each["request"]["url"] for each in self._events("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")][1:]

    @property
    def errors(self) -> list[str]:
        """Return the errors and messages of the console."""
        logged = [each["entry"]["text"] for each in self._events("Log.entryAdded")]
        thrown = self._events("Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return logged + [str(each) for each in thrown]
