"""Why parts of a model run in eager PyTorch: the user's line, what about it, which part, and what to write instead."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

import daceopt
from daceopt.capture.torch.lines import UNLIKE_PYTHON, stack_of
from daceopt.errors import DaceoptError, Unsupported
from daceopt.modules.break_kinds import KINDS
from daceopt.modules.hints import HINTS

_TORCH, _OWN = (str(Path(str(package.__file__)).parent) + os.sep for package in (torch, daceopt))
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_\d+$")

WHOLE = "as a whole"
BETWEEN = "where its graph breaks, between compiled pieces"


@dataclass(frozen=True)
class SourceLine:
    """A line of source."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether it is in no file of PyTorch, Python or daceopt."""
        installed = f"{os.sep}site-packages{os.sep}" in self.file
        return not self.file.startswith((_TORCH, _OWN)) and (installed or not self.file.startswith(_PYTHON))

    @property
    def source(self) -> str:
        """The line itself; empty where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        place = f"{_relative(self.file)}:{self.line}, in {self.function}"
        return f"{place}: `{self.source}`" if self.source else place


@dataclass(frozen=True)
class Break:
    """Why a part of a model runs in eager PyTorch.

    ``reason``: what about the line ``place``, the innermost one that is neither PyTorch's nor daceopt's (None where
    nothing tells it); ``part``: which part runs in eager PyTorch; ``instead``: what to write (empty: unknown);
    ``said``: the reason as PyTorch or the compiler put it.
    """

    reason: str
    part: str
    place: SourceLine | None = None
    instead: str = ""
    said: str = ""

    @property
    def text(self) -> str:
        """The reason with its place: one line."""
        return self.reason if self.place is None else f"{self.reason}, at {self.place}"

    def __str__(self) -> str:
        end = f". Instead: {self.instead}" if self.instead else ""
        return f"runs in eager PyTorch {self.part}: {self.text}{end}"


class Breaks:
    """What Dynamo tells of the code that it looks at (by ``begins``, ``begins_again``, ``broke``, ``on_failure`` and
    ``goes_on``), kept until ``new_breaks`` asks for it."""

    def __init__(self) -> None:
        self._breaks: list[Break] = []  # since they were asked for
        self._code: Any = None  # that Dynamo looks at, or looked at last
        self._begun = 0  # how many breaks there were when it began with that
        self._broken: set[Any] = set()  # code whose graph broke

    def new_breaks(self) -> list[Break]:
        """Graph breaks, and what Dynamo failed at, since the last time."""
        breaks, self._breaks = self._breaks, []
        self._begun, self._broken = 0, set()
        return list({b.text: b for b in breaks}.values())  # the last has seen most

    def drop_breaks(self) -> bool:
        """Forget the breaks since ``new_breaks`` was asked last; whether there were any."""
        return bool(self.new_breaks())

    def is_broken(self, code: object) -> bool:
        """Whether the graph of this code broke since ``new_breaks`` was asked last."""
        return code in self._broken

    def begins(self, code: object) -> None:
        """Dynamo looks at a piece of code."""
        self._code, self._begun = code, len(self._breaks)

    def begins_again(self) -> None:
        """What Dynamo has said of the code is no longer so: it is looked at in another way."""
        del self._breaks[self._begun :]
        self._broken.discard(self._code)

    def broke(self, error: BaseException) -> None:
        """Dynamo breaks the graph, and goes on behind."""
        self._broken.add(self._code)
        self._breaks.append(_at_users_line(of_error(error, BETWEEN)))

    def on_failure(self, error: BaseException, leaves_calls: bool) -> None:
        """Dynamo compiles nothing of the code, whatever it had before, and of what that calls if ``leaves_calls``."""
        name = function_name(self._code.co_name)
        part = f"in all of {name}" if leaves_calls else f"in all of {name} but for what it calls"
        self._breaks[self._begun :] = [_at_users_line(of_error(error, part))]

    def goes_on(self) -> None:
        """What Dynamo failed at is compiled in parts."""
        self._broken.add(self._code)
        self._breaks[self._begun :] = [replace(b, part=BETWEEN) for b in self._breaks[self._begun :]]


def of_error(error: BaseException, part: str, message: str = "") -> Break:
    """What an error of Dynamo's, or of the compiler about a line of the model, says; ``message`` replaces its text."""
    return to_break(message or str(error).strip() or type(error).__name__, part, innermost(_stack(error)))


def to_break(message: str, part: str, place: SourceLine | None = None) -> Break:
    """A break for the reason in ``message``, in the words of the table of hints."""
    for hint in (*HINTS, *KINDS) if _is_dynamos(message) else HINTS:
        if (match := hint.pattern.search(message)) is not None:
            return Break(match.expand(hint.reason), part, place, hint.instead, message)
    return Break(_first(message), part, place, _own_hint(message), message)


def _is_dynamos(message: str) -> bool:
    """Whether Dynamo says so, of a kind of break that it knows."""
    return "\n  Explanation:" in message and UNLIKE_PYTHON not in message


def versions(arguments: Sequence[object]) -> list[int]:
    """How often each tensor of a call has been changed: where these are other ones, a call must not run again."""
    return [t._version for t in arguments if isinstance(t, torch.Tensor) and not t.is_inference()]


def with_place(error: DaceoptError, reason: Break) -> DaceoptError:
    """The error, whose message ends with the line that it is about, and what to write instead."""
    more = [f"  at {reason.place}"] if reason.place is not None else []
    more += [f"  instead: {reason.instead}"] if reason.instead else []
    text = str(error)
    if more and more[0] not in text:
        error.args = ("\n".join([text, *more]), *error.args[1:])
    return error


def as_error(reason: Break, error: BaseException) -> DaceoptError:
    """What is raised where ``fallback="raise"``: the error itself where it is one of daceopt's, with the line."""
    return with_place(error if isinstance(error, DaceoptError) else Unsupported(reason.reason), reason)


def innermost(stack: Iterable[Any]) -> SourceLine | None:
    """The innermost of these frames (of ``traceback``) that is the user's; PyTorch's own where all are."""
    places = [SourceLine(f.filename, f.lineno, function_name(f.name)) for f in stack if f.lineno is not None]
    lines = [p for p in places if not p.file.startswith((_OWN, "<"))]
    return next((p for p in reversed(lines) if p.is_users), lines[-1] if lines else None)


def _at_users_line(reason: Break) -> Break:
    """A break in code of PyTorch's own is told of the call of the model."""
    is_inner = reason.place is not None and not reason.place.is_users
    return replace(reason, place=_caller() or reason.place) if is_inner else reason


def _caller() -> SourceLine | None:
    """The user's line from which the running call comes: of a model whose code is PyTorch's own, the call itself."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith("<"):
            place = SourceLine(code.co_filename, frame.f_lineno, function_name(code.co_name))
            if place.is_users:
                return place
        frame = frame.f_back
    return None


def function_name(name: str) -> str:
    """Of a function, where Dynamo has called the rest of it by a name of its own."""
    return _RESUMED.sub(r"\1", name)


def _stack(error: BaseException) -> Iterable[Any]:
    stack = getattr(error, "real_stack", None)
    if stack:
        return list(stack)
    frames = _FRAME.findall(stack_of(error))
    return [traceback.FrameSummary(file, int(line), name, lookup_line=False) for file, line, name in frames]


def _first(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), message)


def _own_hint(message: str) -> str:
    """What a break that ``tracing`` makes itself says to do."""
    hint = re.search(r"^ *Hint: (.+)$", message, re.MULTILINE) if UNLIKE_PYTHON in message else None
    return hint[1] if hint is not None else ""


def _relative(file: str) -> str:
    """Below the working directory without it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def reason_of(error: BaseException) -> str:
    """One line that says why."""
    text = str(error) if isinstance(error, DaceoptError) else f"{type(error).__name__}: {error}"
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


def part_of(graph: fx.GraphModule) -> str:
    """Which part of a model a graph is."""
    count = sum(n.op in ("call_function", "call_method", "call_module") for n in graph.graph.nodes)
    return f"in a piece of {count} operator{'s' * (count != 1)}"
