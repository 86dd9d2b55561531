"""Tests whose cases compile as one source: each of them alone would spend most of its time on the library's headers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.libs.harness import Implemented, compile_implemented

Steps = Generator["Program", str, None]


@dataclass
class Program:
    """What a case runs, over which tensors, in which context."""

    part: Implemented
    tensors: list[torch.Tensor]
    context: Callable[[], AbstractContextManager[None]] = nullcontext

    def run(self) -> None:
        """By itself."""
        compile_implemented([self.part])[0](*self.tensors)


@dataclass
class _Begun:
    """A case that has come to its program; ``run`` is there when it is compiled."""

    rest: Steps
    program: Program
    run: Callable[..., None] | None = None


def together(test: Callable[..., Steps]) -> Callable[..., None]:
    """A case yields its program once, and goes on with what was written to standard output after the program has run.

    The first case that runs compiles the programs of all that were selected.
    """
    begun: dict[str, _Begun | Exception] = {}

    @functools.wraps(test)
    def run(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str], **parameters: Any) -> None:
        own = request.node
        if own.nodeid not in begun:
            begun.update({item.nodeid: _begin(test(**item.callspec.params)) for item in _selected(own)})
            _compile([found for found in begun.values() if isinstance(found, _Begun) and not found.run])
        found = begun.pop(own.nodeid)
        if isinstance(found, Exception):
            raise found
        assert found.run is not None
        capfd.readouterr()
        with found.program.context():
            found.run(*found.program.tensors)
        _finish(found.rest, capfd.readouterr().out)

    ours = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in ("request", "capfd")]
    theirs = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature([*theirs, *ours])  # type: ignore[attr-defined]
    return run


def alone(case: Steps) -> None:
    """Run a case by itself, without what it writes."""
    next(case).run()
    _finish(case, "")


def _selected(own: Any) -> list[Any]:
    """The cases of the same test."""
    return [i for i in own.session.items if i.path == own.path and getattr(i, "originalname", "") == own.originalname]


def _begin(case: Steps) -> _Begun | Exception:
    """What fails here is that case's failure, no other's."""
    try:
        return _Begun(case, next(case))
    except Exception as error:
        return error


def _compile(cases: list[_Begun]) -> None:
    for case, function in zip(cases, compile_implemented([c.program.part for c in cases]), strict=True):
        case.run = function


def _finish(case: Steps, said: str) -> None:
    try:
        case.send(said)
    except StopIteration:
        return
    raise AssertionError("a case yields one program")
