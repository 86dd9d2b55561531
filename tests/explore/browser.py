"""A headless Chromium driven through the DevTools protocol over pipes: what a page says, asks for and looks like."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-extensions --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
).split()
_DEADLINE = 60.0

# the browser listens to file 3 and answers to file 4
_WIRED = """
import os, sys
ends = [os.dup(os.dup(int(end))) for end in sys.argv[1:3]]
os.dup2(os.dup(ends[0]), 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

EXECUTABLE = next(filter(None, map(shutil.which, NAMES)), None)
_IS_THERE = pytest.mark.skipif(EXECUTABLE is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")
needed = [pytest.mark.browser, _IS_THERE]


class Browser:
    """One page at a time, without a network unless it is ``online``. ``errors``: what its console says, and
    exceptions; ``requests``: addresses it asked for."""

    def __init__(self, read: int, write: int, online: bool = False) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._events: deque[dict[str, Any]] = deque()
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        if not online:
            nothing = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
            self.call("Network.emulateNetworkConditions", offline=True, **nothing)
        self.errors: list[str] = []
        self.requests: list[str] = []

    def open(self, page: Path | str, scheme: str = "light") -> float:
        """Load a file or an address in a colour scheme; seconds until it has loaded and been laid out."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        self.errors, self.requests = [], []
        self._events.clear()
        start = time.perf_counter()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self._until("Page.loadEventFired")
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        return time.perf_counter() - start

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, awaited. Raises AssertionError for what it throws."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression of the page holds; fails, with what the page says, where it does not come to that."""
        deadline = time.monotonic() + 2 * _DEADLINE
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"{condition}: {self.evaluate('document.body.innerText')} {self.errors}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key: ``Tab``, ``Enter``, ``ArrowDown``."""
        text = {"text": "\r"} if key == "Enter" else {}
        codes = {"Tab": 9, "Enter": 13, "ArrowUp": 38, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **more)

    def click(self, selector: str) -> None:
        """Click the middle of the first element of a selector, as a mouse does."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{place}.scrollIntoView({{block: 'center'}})")
        x, y = self.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({place}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self._note(found)

    def _until(self, event: str) -> None:
        deadline = time.monotonic() + _DEADLINE
        while True:
            while self._events:
                if self._events.popleft()["method"] == event:
                    return
            assert time.monotonic() < deadline, f"{event} does not come"
            self._note(self._receive())

    def _note(self, event: dict[str, Any]) -> None:
        """Keep an event, and what it tells of the page."""
        self._events.append(event)
        given = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(given["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.errors.append(str(given["args"]))
        elif event["method"] == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(given["entry"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            found = os.read(self._read, 1 << 20)
            assert found, "the browser has ended"
            self._buffer += found
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def browser(online: bool = False) -> Iterator[Browser]:
    """A browser with a profile of its own, ended at the end."""
    assert EXECUTABLE is not None
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [EXECUTABLE, *_FLAGS, f"--user-data-dir={profile}"]
        wired = [sys.executable, "-c", _WIRED, str(their_in), str(their_out), *command]
        process = subprocess.Popen(
            wired, pass_fds=(their_in, their_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(their_in)
        os.close(their_out)
        try:
            yield Browser(our_in, our_out, online)
        finally:
            process.terminate()
            process.wait(timeout=300)
            os.close(our_in)
            os.close(our_out)
