"""What stands for a page in tests of live sessions: it sends requests and waits for their answers."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daceopt.explore import Session
from daceopt.explore.live.live_session import LiveSession

_PATIENCE = 300.0  # seconds


class FakePage:
    """``events``: what it heard beside answers."""

    def __init__(self, live: LiveSession):
        self.live = live
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count()
        self._inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.end = live.connect(self._inbox.put)

    def message(self, message: object) -> dict[str, Any]:
        """The answer to a message, whatever it is."""
        self.live.handle(message, self._inbox.put)
        while True:
            answer = self._inbox.get(timeout=_PATIENCE)
            if "event" not in answer:
                return answer
            self.events.append(answer)

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self.message({"id": number, "verb": verb, "arguments": arguments})
        assert answer["id"] == number
        return answer

    def get(self, verb: str, **arguments: Any) -> dict[str, Any]:
        answer = self.ask(verb, **arguments)
        assert "error" not in answer, answer["error"]
        return answer["ok"]

    def error(self, verb: str, **arguments: Any) -> str:
        return str(self.ask(verb, **arguments)["error"])

    def ready(self) -> dict[str, Any]:
        """The state once the model is captured."""
        while (state := self.get("state"))["version"] is None and not state["failure"]:
            self.events.append(self._inbox.get(timeout=_PATIENCE))
        return state


@contextmanager
def opened(make: Callable[[], Session], folder: Path) -> Iterator[FakePage]:
    """A page on a live session."""
    live = LiveSession(make, folder, "model")
    try:
        yield FakePage(live)
    finally:
        live.close()
