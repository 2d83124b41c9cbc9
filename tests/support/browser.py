"""Headless Chromium, driven by its DevTools protocol over a pipe. Not a test itself.

with Browser(folder) as browser:
    page = browser.open(file, width=390, dark=True)
    page.evaluate("document.title"); page.screenshot(); page.errors; page.requests
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium here: `apt-get install chromium`, or make setup-all as root",
)
TIMEOUT_S = 60.0


class Browser:
    """Ends with the `with` block, with all its processes."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-dev-shm-usage",
        ]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()

        def connect() -> None:  # the protocol's pipe is on descriptors 3 and 4
            first, second = os.dup(read_commands), os.dup(write_answers)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [
                CHROMIUM,
                *flags,
                f"--user-data-dir={profile}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._number, self.events = b"", 0, list[dict[str, Any]]()

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

    def open(
        self, place: Path | str, width: int, height: int = 844, dark: bool = False, scale: float = 1
    ) -> Page:
        """Open a file or a URL on a screen of this width; a narrow one is a phone."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        url = place if isinstance(place, str) else place.resolve().as_uri()
        page.call("Page.navigate", url=url)
        self._wait_for(
            lambda event: (
                event.get("method") == "Page.loadEventFired" and event.get("sessionId") == session
            )
        )
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = self._wait_for(lambda event, number=self._number: event.get("id") == number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _wait_for(self, wanted: Any) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                event = json.loads(text)
                self.events.append(event)
                if wanted(event):
                    return event
            ready, _, _ = select.select(
                [self._answers], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, "the browser does not answer"
            chunk = os.read(self._answers, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, whole: bool = False) -> bytes:
        return base64.b64decode(
            self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        )

    @property
    def _own(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]

    @property
    def requests(self) -> list[str]:
        """Return the URLs that the page requested, without itself and its data URLs."""
        urls = [
            e["params"]["request"]["url"]
            for e in self._own
            if e.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith("data:")][1:]

    @property
    def errors(self) -> list[str]:
        """Return the errors and messages of the console."""
        logged = [
            e["params"]["entry"]["text"] for e in self._own if e.get("method") == "Log.entryAdded"
        ]
        thrown = [
            str(e["params"])
            for e in self._own
            if e.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        ]
        return logged + thrown
