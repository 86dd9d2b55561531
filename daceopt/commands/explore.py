"""``python -m daceopt explore``: a page on this machine that walks the optimization of a model."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from daceopt.capture.onnx.file import load
from daceopt.commands import model
from daceopt.errors import DaceoptError
from daceopt.explore.live.live_session import LiveSession
from daceopt.explore.live.server import listen, serve
from daceopt.explore.session.session import explore
from daceopt.passes.loading import load_file
from daceopt.runtime.tensors import from_file

if TYPE_CHECKING:
    from daceopt.explore.session.session import Session

_INTERRUPTED = 130


def arguments(parser: ArgumentParser) -> None:
    model.subject_arguments(parser)
    model.inputs_argument(parser)
    parser.add_argument("--port", type=int, default=0, help="where the page is, on 127.0.0.1 (default: any free one)")
    parser.add_argument(
        "--folder", type=Path, default=Path(), metavar="DIR", help="where recipes are saved (default: here)"
    )


def run(options: Namespace) -> None:
    for path in options.load:
        load_file(path)
    subject = model.model_of(options)
    if isinstance(subject, Path) and not subject.is_file():
        raise DaceoptError(f"{subject}: there is no such file; expected {model.EXPECTED}")
    if not options.folder.is_dir():
        raise DaceoptError(f"--folder {options.folder}: there is no such folder; make it, or give another one")
    with listen(options.port) as listening:
        title = str(subject) if isinstance(subject, Path) else subject.title
        live = LiveSession(lambda: _session(subject, options.inputs), options.folder.resolve(), title)
        try:
            serve(live, listening, _announce)
        finally:
            if not live.close():  # the interpreter cannot end a thread in the middle of C++
                os._exit(_INTERRUPTED)


def _announce(address: str) -> None:
    print(f"open {address}\nin a browser on this machine; Ctrl-C ends the session", flush=True)


def _session(subject: Path | model.ModuleOnDisk, inputs: Path | None) -> Session:
    """The session, or one line on stderr that says why there is none; the page says it too."""
    try:
        if not isinstance(subject, Path):
            return explore(subject.module, *subject.args, **subject.kwargs)
        loaded = load(subject)
        stored = {t.name for t in loaded.graph.initializer}
        names = [v.name for v in loaded.graph.input if v.name not in stored]
        return explore(subject, *(from_file(inputs, names) if inputs is not None else []))
    except Exception as error:
        print(f"daceopt explore: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        raise
