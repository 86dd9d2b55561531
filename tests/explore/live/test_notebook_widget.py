"""Live sessions in Jupyter: the messages of the widget, by a comm that keeps what it would send."""

from __future__ import annotations

import queue
import sys
from pathlib import Path
from typing import Any

import pytest

import daceopt
from tests.explore.sessions import session

pytest.importorskip("anywidget", reason="the extra explore is not installed")

import comm
from comm.base_comm import BaseComm


class FakeComm(BaseComm):
    """``sent``: what came from Python."""

    sent: queue.Queue[dict[str, Any]]

    def publish_msg(self, msg_type: str, data: Any = None, *args: Any, **keys: Any) -> None:
        self.__dict__.setdefault("sent", queue.Queue()).put({"type": msg_type, **(data or {})})


@pytest.fixture
def fake_comms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "create_comm", FakeComm)


def ask(widget: Any, verb: str, **arguments: Any) -> dict[str, Any]:
    request = {"id": 7, "verb": verb, "arguments": arguments}
    widget.comm.handle_msg({"content": {"data": {"method": "custom", "content": request}}, "buffers": []})
    while True:
        content = widget.comm.sent.get(timeout=300).get("content", {})
        if content.get("id") == 7:
            return dict(content)


def test_a_widget_walks_its_session(fake_comms: None, tmp_path: Path) -> None:
    at = session(1, backward=False)
    widget = daceopt.explore.widget(at, tmp_path)
    assert "export default" in widget._esm and ".daceopt-live" in widget._css
    while (state := ask(widget, "state")["ok"])["version"] is None:
        pass
    version = ask(widget, "apply_step", version=state["version"], step="lower-operators")["ok"]["version"]
    assert [str(step) for step in at.path] == ["lower-operators"] and at.at.number == version
    assert "no such verb" in ask(widget, "eval")["error"]
    at.undo()
    assert "look again" in ask(widget, "code", version=version, kernel=0)["error"], "a cell has walked on"
    assert ask(widget, "state")["ok"]["version"] == at.at.number
    assert ask(widget, "save", name="path", overwrite=False)["ok"] == {"path": str(tmp_path / "path.py")}


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r"pip install 'daceopt\[explore\]'"):
        daceopt.explore.widget(session(1))
