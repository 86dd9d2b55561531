"""The page on the loopback: who is let in, what is refused, and what errors of the command say."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daceopt.commands.main import main
from daceopt.errors import DaceoptError
from daceopt.explore.live.live_session import LiveSession
from daceopt.explore.live.requests import LONGEST
from tests.explore.sessions import session

pytest.importorskip("starlette", reason="the extra explore is not installed")

from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from daceopt.explore.live.server import LOOPBACK, Door, application, listen

DOOR = Door(8123, "secret")
HOST = "http://127.0.0.1:8123"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSession]:
    found = LiveSession(lambda: session(1, backward=False), tmp_path_factory.mktemp("recipes"))
    yield found
    found.close()


@pytest.fixture
def stranger(live: LiveSession) -> TestClient:
    return TestClient(application(live, DOOR), base_url=HOST, follow_redirects=False)


@pytest.fixture
def guest(stranger: TestClient) -> TestClient:
    """Somebody who opened the address."""
    stranger.get("/?token=secret")
    return stranger


def talk(client: TestClient, **headers: str) -> Any:
    return client.websocket_connect("ws://127.0.0.1:8123/session", headers={"origin": HOST, **headers})


def answer_to(page: Any, **request: Any) -> dict[str, Any]:
    """What the session answers to ``request``, past the events it sends in between; of the next message without one."""
    if request:
        page.send_json(request)
    while "event" in (answer := page.receive_json()):
        pass
    return answer


def test_the_address_gives_a_cookie_and_the_page(stranger: TestClient) -> None:
    answer = stranger.get("/?token=secret")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "domain" not in cookie
    page = stranger.get("/")
    assert page.status_code == 200 and 'src="live.js"' in page.text and "<script>" not in page.text
    for name, kind in (("live.js", "text/javascript"), ("live.css", "text/css")):
        assert stranger.get(f"/{name}").headers["content-type"].startswith(kind)


def test_headers_forbid_what_is_not_needed(guest: TestClient) -> None:
    for answer in (guest.get("/"), guest.get("/nowhere"), guest.get("/?token=wrong")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["", "?token=", "?token=wrong", "?token=secre", "live.js", "live.js?token=secret"])
def test_without_the_token_nothing_is_shown(stranger: TestClient, path: str) -> None:
    answer = stranger.get(f"/{path}")
    assert answer.status_code == 403
    said = "the token is missing or wrong: open the address that `python -m daceopt explore` has printed"
    assert answer.text == f"{said}\n"


def test_a_socket_needs_the_cookie_and_the_origin(stranger: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect) as refused, talk(stranger):
        pass
    assert refused.value.code == 1008 and "token" in refused.value.reason
    stranger.get("/?token=secret")
    for origin in ("http://evil.example", "http://127.0.0.1:8124", "https://127.0.0.1:8123", "null", ""):
        with pytest.raises(WebSocketDisconnect) as refused, talk(stranger, origin=origin):
            pass
        assert "another origin" in refused.value.reason


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80", "localhost"])
def test_other_names_are_refused(guest: TestClient, host: str) -> None:
    """As a name of somebody else's that leads to the loopback (DNS rebinding)."""
    answer = guest.get("/", headers={"host": host})
    assert answer.status_code == 403 and "this server is called 127.0.0.1:8123" in answer.text
    with pytest.raises(WebSocketDisconnect), talk(guest, host=host):
        pass


def test_other_methods_and_pages_of_other_origins(guest: TestClient) -> None:
    assert guest.post("/").status_code == 405
    assert guest.get("/live.html").status_code == 404
    assert guest.get("/../server.py").status_code == 404
    assert guest.get("/", headers={"origin": "http://evil.example"}).status_code == 403


def test_a_page_talks_to_the_session(guest: TestClient) -> None:
    with talk(guest) as page:
        answer = answer_to(page, id=1, verb="compare", arguments={"other": "captured", "seconds": 0.01})
        assert answer["id"] == 1 and "captured -> main" in answer["ok"]["text"]
        for number, verb in enumerate(("__class__", "_run", "close", "handle")):
            assert "no such verb" in answer_to(page, id=number, verb=verb)["error"]
        page.send_text("x" * (LONGEST + 1))
        assert "expected at most" in answer_to(page)["error"]
        page.send_bytes(b"\0")
        assert "expected a message" in answer_to(page)["error"]


def test_a_token_is_new_each_time_and_is_not_printed() -> None:
    assert len(Door(1).token) >= 43 and Door(1).token != Door(1).token
    assert Door(1).token not in repr(Door(1))
    assert Door(7, "t").admits("t") and not Door(7, "t").admits(None) and not Door(7, "t").admits("ü")


def test_it_listens_on_the_loopback_alone() -> None:
    with listen(0) as listening:
        name, port = listening.getsockname()
        assert name == LOOPBACK
        with pytest.raises(DaceoptError, match=f"port {port} is taken .*give another --port"):
            listen(port)
    for port in (-1, 1 << 20):
        with pytest.raises(DaceoptError, match="not allowed"):
            listen(port)


MODEL = "from torch import nn\ndef build():\n    return nn.Tanh()\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["gone.py:build"], "gone.py"),
        (["model.py:build"], "on what is it called?"),
        (["model.py:nothing"], "defines no 'nothing'"),
        (["gone.onnx"], "gone.onnx: there is no such file"),
        (["ok.py:build", "--folder", "nowhere"], "there is no such folder; make it"),
        (["ok.py:build", "--port", "PORT"], "is taken"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("ok.py").write_text(MODEL + "import torch\nexample_inputs = torch.ones(3)\n")
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        words = [str(taken.getsockname()[1]) if word == "PORT" else word for word in arguments]
        assert main(["explore", *words]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("daceopt explore: ") and message in shown.err and shown.err.count("\n") == 1
