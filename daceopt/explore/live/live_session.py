"""A session that pages walk by messages: one worker thread does what takes long, everybody hears of it."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daceopt import progress
from daceopt.errors import DaceoptError, SessionError
from daceopt.explore.live.requests import BadRequest, Request, parse
from daceopt.explore.live.schedule_trials import EDITS, step_of, trial
from daceopt.explore.live.version_view import Data, VersionView
from daceopt.ir.schedule.schedule import KINDS
from daceopt.passes.recipe import recipes

if TYPE_CHECKING:
    from daceopt.explore.session.session import Session
    from daceopt.progress import ProgressRow
    from daceopt.transformations.hardware._scheduling import KernelStep

Send = Callable[[Data], None]
_MOST_WAITING = 32  # requests
_BETWEEN = 0.1  # seconds between messages of progress
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}")
_WRITTEN_BY_US = '"""Steps of a session on '


@dataclass(frozen=True)
class _Work:
    """A request that waits for the worker, and who gets the answer."""

    request: Request
    send: Send


class LiveSession:
    """Answers requests of pages about one session, which ``make`` gives, in the worker's thread; recipes are saved in
    ``folder``.

    ``handle`` takes what a page sent, from any thread, and ``send``, which takes the answers, in any thread. What is
    known of the version at hand is answered at once, all else in turn.
    """

    def __init__(self, make: Callable[[], Session], folder: Path, title: str = ""):
        self._folder, self._title = folder, title
        self._work: queue.Queue[_Work | None] = queue.Queue()
        self._pages: list[Send] = []
        self._busy = ""
        self._view: VersionView | None = None
        self._failure = ""
        self._latest = 0.0
        self._worker = threading.Thread(target=self._run, args=(make,), name="daceopt live session", daemon=True)
        self._worker.start()

    def connect(self, send: Send) -> Callable[[], None]:
        """Let a page hear of changes; what is returned ends that."""
        self._pages.append(send)
        return lambda: self._pages.remove(send) if send in self._pages else None

    def close(self, patience: float = 2.0) -> bool:
        """Nothing is answered any more; has what runs come to its end within ``patience`` seconds?"""
        with suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        self._work.put(None)
        self._worker.join(patience)
        return not self._worker.is_alive()

    def handle(self, message: object, send: Send) -> None:
        """Answer one message of a page."""
        try:
            request = parse(message)
        except BadRequest as error:
            send({"id": error.number, "error": str(error)})
            return
        at_once = self._at_once(request.verb)
        if at_once is None and self._work.qsize() >= _MOST_WAITING:
            send({"id": request.number, "error": f"{_MOST_WAITING} requests wait already; try again later"})
        elif at_once is None:
            self._work.put(_Work(request, send))
        else:
            self._answer(request, send, at_once)

    def _at_once(self, verb: str) -> Callable[..., Data] | None:
        """What needs no work."""
        if self._view is None:
            return self._begin if verb == "state" else None
        quick: dict[str, Callable[..., Data]] = {"state": self._state, "scene": self._scene, "kernel": self._kernel}
        return quick.get(verb)

    def _answer(self, request: Request, send: Send, method: Callable[..., Data]) -> None:
        try:
            send({"id": request.number, "ok": method(**request.arguments)})
        except DaceoptError as error:
            send({"id": request.number, "error": str(error)})
        except (Exception, SystemExit) as error:  # of a user's transformation, or ours: the session goes on
            send({"id": request.number, "error": f"{type(error).__name__}: {error}"})

    # ---------------------------------------------------------------- the worker

    def _run(self, make: Callable[[], Session]) -> None:
        with progress.watch(self._tell_progress):
            try:
                self._busy = "capture"
                self._look(make())
            except (Exception, SystemExit) as error:
                text = str(error) if isinstance(error, DaceoptError) else f"{type(error).__name__}: {error}"
                self._failure = " ".join(text.split())
            self._busy = ""
            self._tell_state()
            while (work := self._work.get()) is not None:
                self._busy = work.request.verb
                self._follow()
                self._answer(work.request, work.send, getattr(self, f"_{work.request.verb}"))
                self._busy = ""
                self._tell({"event": "idle"})

    def _look(self, session: Session) -> None:
        self._view = VersionView(session)

    def _follow(self) -> None:
        """Somebody else may have walked the session meanwhile, in another cell of a notebook."""
        view = self._view
        if view is not None and view.session.at is not view.version:
            self._look(view.session)
            self._tell_state()

    def _tell(self, event: Data) -> None:
        for send in list(self._pages):
            send(event)

    def _tell_state(self) -> None:
        self._tell({"event": "state", "state": self._begin() if self._view is None else self._state()})

    def _tell_progress(self, rows: Sequence[ProgressRow]) -> None:
        if not rows or time.monotonic() < self._latest + _BETWEEN:
            return
        self._latest = time.monotonic()
        shown = [{"text": str(row), "done": row.done, "total": row.total} for row in rows]
        self._tell({"event": "progress", "verb": self._busy, "rows": shown})

    # ---------------------------------------------------------------- verbs: looking

    def _begin(self) -> Data:
        """What is known before there is a session, or where there is none."""
        return {"title": self._title, "failure": self._failure, "busy": self._busy, "version": None}

    def _here(self, version: int | None = None) -> VersionView:
        view = self._view
        if view is None:
            raise SessionError(self._failure or "the model is not captured yet")
        if version is not None and version != view.number:
            raise SessionError(f"the session is at version {view.number}, the page shows {version}: look again")
        return view

    def _state(self) -> Data:
        offered = {"recipes": recipes.names(), "edits": list(EDITS), "kinds": list(KINDS)}
        return {**self._here().state, **offered, "busy": self._busy, "failure": "", "folder": self._folder.name}

    def _scene(self, version: int, direction: str, module: int) -> Data:
        return self._here(version).scene(direction, module)

    def _kernel(self, version: int, kernel: int) -> Data:
        return self._here(version).kernel(kernel)

    def _code(self, version: int, kernel: int) -> Data:
        codes = self._here(version).session.code(kernel)
        return {"version": version, "kernel": kernel, "source": "\n\n".join(code.source for code in codes)}

    def _sites(self, version: int, kernel: int) -> Data:
        view = self._here(version)
        if view.sites is None:
            view.sites = view.session.sites()
        return view.sites_at(kernel, view.sites)

    # ---------------------------------------------------------------- verbs: walking

    def _walk(self, change: Callable[[Session], Session]) -> Data:
        """Change the session, and tell all pages."""
        self._look(change(self._here().session))
        self._tell_state()
        return {"version": self._here().number}

    def _apply_site(self, version: int, site: int) -> Data:
        sites = self._here(version).sites
        if sites is None or site >= len(sites):
            raise SessionError("there is no such site; look again")
        return self._walk(lambda session: session.apply(sites[site]))

    def _apply_step(self, version: int, step: str) -> Data:
        steps = self._here(version).steps
        if step in steps:
            return self._walk(lambda session: session.apply(steps[step]))
        if step not in recipes.names():
            raise SessionError("there is no such step or recipe; take one that the page offers")
        return self._walk(lambda session: session.apply(recipes.get(step)))

    def _undo(self) -> Data:
        return self._walk(lambda session: session.undo())

    def _redo(self) -> Data:
        return self._walk(lambda session: session.redo())

    def _branch(self, name: str) -> Data:
        return self._walk(lambda session: session.branch(name))

    def _edit(self, view: VersionView, kernel: int, edit: str, loops: Sequence[str], value: str) -> KernelStep:
        return step_of(edit, loops, value, view.row(kernel).label)

    def _try_edit(self, version: int, kernel: int, **edit: Any) -> Data:
        view = self._here(version)
        step = self._edit(view, kernel, **edit)
        graph = dict(view.scratch.by_direction())[view.row(kernel).direction]
        return {"step": str(step), **trial(step, graph, graph.nodes()[view.position(kernel)])}

    def _apply_edit(self, version: int, kernel: int, **edit: Any) -> Data:
        view = self._here(version)
        sites = view.session.sites(self._edit(view, kernel, **edit))
        return self._walk(lambda session: session.apply(view.site_of(kernel, sites)))

    # ---------------------------------------------------------------- verbs: measuring and keeping

    def _compare(self, other: str, seconds: float) -> Data:
        session = self._here().session
        number = re.fullmatch(r"version (\d{1,9})", other)
        chosen = None if other == "captured" else int(number[1]) if number else other
        comparison = session.compare(chosen, seconds=seconds)
        return {"text": str(comparison), "details": comparison.text(), "speedup": comparison.speedup}

    def _measure(self, version: int, kernel: int, seconds: float) -> Data:
        view = self._here(version)
        measured = view.session.measure(kernel, seconds=seconds)
        return view.measurement(kernel, measured.seconds, str(measured))

    def _save(self, name: str, overwrite: bool) -> Data:
        """A recipe file in the folder; what daceopt did not write is never replaced, what it did with consent."""
        if not _NAME.fullmatch(name):
            raise SessionError("expected a plain name of letters, digits, - and _, without folder and ending")
        path = self._folder / f"{name}.py"
        if path.is_symlink() or (path.exists() and not _is_ours(path)):
            raise SessionError(f"{path.name} exists and is no recipe of a session; choose another name")
        if path.exists() and not overwrite:
            return {"exists": path.name}
        return {"path": str(self._here().session.save(path))}


def _is_ours(path: Path) -> bool:
    return path.is_file() and path.read_bytes().startswith(_WRITTEN_BY_US.encode())
