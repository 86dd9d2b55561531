"""The page of a live session on this machine: listens on the loopback alone, and refuses who has no token.

A page of another origin, or one that reaches us by another name (DNS rebinding), is refused by ``Origin`` and ``Host``.
The address with the token gives a cookie that scripts cannot read, and then the page; all else wants the cookie.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from daceopt.errors import DaceoptError
from daceopt.explore.live.requests import LONGEST

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response
    from starlette.websockets import WebSocket

    from daceopt.explore.live.live_session import LiveSession
    from daceopt.explore.live.version_view import Data

LOOPBACK = "127.0.0.1"
NEEDED = "a page in a browser needs packages: pip install 'daceopt[explore]'"
_KINDS = {"live.js": "text/javascript", "live.css": "text/css", "live.html": "text/html"}
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class Door:
    """Who is let in: the port that is listened to, and the token."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def address(self) -> str:
        """What somebody opens in a browser."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Its name: cookies do not know of ports."""
        return f"daceopt-explore-{self.port}"

    def admits(self, token: str | None) -> bool:
        """Is it the token? Takes as long whatever is wrong with it."""
        return hmac.compare_digest((token or "").encode(), self.token.encode())

    def objection(self, headers: Mapping[str, str], wants_origin: bool) -> str | None:
        """What is wrong with the names by which a request came, if anything is."""
        names = [f"{name}:{self.port}" for name in (LOOPBACK, "localhost")]
        if headers.get("host") not in names:
            return f"this server is called {names[0]}, and nothing else"
        origin = headers.get("origin")
        if (origin or wants_origin) and origin != f"http://{headers['host']}":
            return "a page of another origin may not talk to this session"
        return None


class Doorkeeper:
    """What stands around the application: checks each request, and gives each answer headers that forbid the rest."""

    def __init__(self, application: Callable[[Scope, Receive, Send], Awaitable[None]], door: Door):
        self._application, self._door = application, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse
        from starlette.websockets import WebSocketClose

        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        reason = self._refusal(scope)
        if reason is None:
            await self._application(scope, receive, self._with_headers(send, scope))
        elif scope["type"] == "websocket":
            await WebSocketClose(1008, reason)(scope, receive, send)
        else:
            await PlainTextResponse(reason + "\n", 403)(scope, receive, self._with_headers(send, scope))

    def _refusal(self, scope: Scope) -> str | None:
        from starlette.requests import HTTPConnection

        connection = HTTPConnection(scope)
        if reason := self._door.objection(connection.headers, scope["type"] == "websocket"):
            return reason
        by_address = scope["type"] == "http" and scope["path"] == "/" and "token" in connection.query_params
        token = connection.query_params["token"] if by_address else connection.cookies.get(self._door.cookie)
        if self._door.admits(token):
            return None
        return "the token is missing or wrong: open the address that `python -m daceopt explore` has printed"

    def _with_headers(self, send: Send, scope: Scope) -> Send:
        from starlette.datastructures import MutableHeaders

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_headers(self._door.port))
            await send(message)

        return sending


def _headers(port: int) -> dict[str, str]:
    """Nothing is loaded from elsewhere, and nobody shows the page in a frame."""
    sockets = " ".join(f"ws://{name}:{port}" for name in (LOOPBACK, "localhost"))
    sources = f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src {sockets}"
    return {
        "content-security-policy": f"{sources}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }


def page_file(name: str) -> str:
    """One of the files of the page."""
    return files("daceopt.explore.live").joinpath("page").joinpath(name).read_text(encoding="utf-8")


def application(live: LiveSession, door: Door) -> Doorkeeper:
    """The page, and the socket by which it talks to ``live``, behind ``door``."""
    from starlette.applications import Starlette
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route, WebSocketRoute

    async def show(request: HttpRequest) -> Response:
        if "token" in request.query_params:  # the address bar and its history do not keep it
            redirect = RedirectResponse("/", 303)
            redirect.set_cookie(door.cookie, door.token, httponly=True, samesite="strict")
            return redirect
        name = request.url.path.removeprefix("/") or "live.html"
        return Response(page_file(name), media_type=_KINDS[name])

    async def talk(websocket: WebSocket) -> None:
        await _talk(live, websocket)

    routes = [Route("/", show), Route("/live.js", show), Route("/live.css", show), WebSocketRoute("/session", talk)]
    inner: Starlette = Starlette(routes=routes)
    return Doorkeeper(inner, door)


async def _talk(live: LiveSession, websocket: WebSocket) -> None:
    """Messages of one page to the session, and back, until it goes."""
    await websocket.accept()
    loop = asyncio.get_running_loop()
    outbox: asyncio.Queue[str] = asyncio.Queue()

    def send(message: Data) -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(outbox.put_nowait, json.dumps(message))

    async def write() -> None:
        while True:
            await websocket.send_text(await outbox.get())

    end, writer = live.connect(send), asyncio.create_task(write())
    try:
        while (message := await websocket.receive())["type"] == "websocket.receive":
            live.handle(message.get("text"), send)
    finally:
        end()
        writer.cancel()


def listen(port: int) -> socket.socket:
    """A socket of the loopback; port 0 is any that is free. Raises DaceoptError where the port is taken."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise DaceoptError(f"port {port} is taken or not allowed ({error}): give another --port, or none") from error
    return listening


def serve(live: LiveSession, listening: socket.socket, announce: Callable[[str], None]) -> None:
    """Serve ``live`` until the process is interrupted; ``announce`` gets the address to open.

    Raises ImportError, with what to install, where a package is missing.
    """
    try:
        import uvicorn
        import websockets  # noqa: F401  (uvicorn asks for it late)
    except ImportError as error:
        raise ImportError(f"{NEEDED} ({error})") from error
    door = Door(listening.getsockname()[1])
    config = uvicorn.Config(
        application(live, door),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws_max_size=LONGEST,
        timeout_graceful_shutdown=1,
    )
    announce(door.address)
    uvicorn.Server(config).run(sockets=[listening])
