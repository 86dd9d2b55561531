"""Programs of one graph for each choice of its sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from daceopt.capture.torch.traced import Traced
from daceopt.errors import Unsupported
from daceopt.modules.description import specialise
from daceopt.torch_internals import autograd_engine, functorch

SIZE_LIMIT = 16
"""Programs of one graph whose sizes cannot be symbols."""


@contextmanager
def own_mode() -> Iterator[None]:
    """Compilation inside a user's scope: its saved-tensor hooks (checkpointing) must not see what compilation does, and
    a trace that fails leaves no transform of torch.func behind that it has entered."""
    hooked = autograd_engine.saved_tensors_hooks() is not None
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t) if hooked else nullcontext()
    depth = functorch.depth()
    with torch.inference_mode(False), hooks:
        try:
            yield
        finally:
            functorch.leave_transforms(depth)


Program = Callable[..., Any]
Add = Callable[[Traced, Sequence[Any]], Program]
Leave = Callable[[Traced, BaseException, Sequence[Any]], Any]


class BySize:
    """A graph whose sizes cannot be symbols, or not all of them: a program for each choice of them, up to a limit."""

    def __init__(self, add: Add, leave: Leave, traced: Traced, reason: str) -> None:
        """``add``: makes a program of a graph, whose arguments in the first call are given; ``leave``: runs a call in
        eager PyTorch for which there is none; ``reason``: why there is no program for all."""
        self._add, self._leave, self.traced, self._reason = add, leave, traced, reason
        self._programs: dict[Any, Program | Exception] = {}
        self._lock = threading.RLock()

    def prepare(self, arguments: Sequence[object]) -> None:
        """Compile for these sizes. Raises why there is no program."""
        program = self._program(arguments)
        if isinstance(program, Exception):
            raise program

    def __call__(self, *arguments: object) -> Sequence[Any]:
        program = self._program(arguments)
        if isinstance(program, Exception):
            return self._leave(self.traced, program, arguments)
        return program(*arguments)

    def _program(self, arguments: Sequence[object]) -> Program | Exception:
        key = tuple(x.shape if isinstance(x, torch.Tensor) else x for x in arguments)
        program = self._programs.get(key)
        if program is not None:
            return program
        with self._lock:
            if key not in self._programs:
                self._programs[key] = self._make(arguments)
            return self._programs[key]

    def _make(self, arguments: Sequence[object]) -> Program | Exception:
        if len(self._programs) >= SIZE_LIMIT:
            reason = f"there are programs for {SIZE_LIMIT} sizes already, and none can be for all: {self._reason}"
            return Unsupported(reason)
        with own_mode():
            try:
                return self._add(specialise(self.traced, arguments), arguments)
            except Exception as error:
                return error
