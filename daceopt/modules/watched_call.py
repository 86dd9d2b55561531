"""Steady calls of a copy of a module, split into the parts that they spend their time in."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from daceopt.modules.backend import Backend, Refused
from daceopt.modules.dispatch import Dispatcher
from daceopt.modules.fast_path import CompiledForward
from daceopt.modules.module import optimized_module
from daceopt.modules.observe import twin_of
from daceopt.modules.options import Options
from daceopt.modules.part_clock import WATCH, PartClock
from daceopt.modules.piece import CompiledPiece
from daceopt.programs.stats import Stats
from daceopt.runtime.executable import Executable
from daceopt.runtime.invocation import ExecutableEntry
from daceopt.torch_internals.pytree import tree_leaves

PYTHON = "Python"
GUARDS = "guards"
DYNAMO = "Dynamo, and what runs between compiled pieces"
COMPILING = "compiling"
EAGER = "eager PyTorch"
BOUNDARY = "arguments, results and autograd"
BINDING = "addresses"
ALLOCATION = "allocation"
GENERATED = "generated kernels"
LIBRARIES = "calls of libraries"
PYTORCH = "calls of PyTorch from inside"
FRAME = "the program around its kernels"
WAITING = "waiting"
INSIDE = (GENERATED, LIBRARIES, PYTORCH, FRAME)
AROUND = (PYTHON, GUARDS, BOUNDARY, BINDING, ALLOCATION)
"""What a call costs beside what it computes."""

OF_PYTORCH = frozenset(("aten", "host", "torch_algorithms", "torch_attention", "torch_call", "torch_device"))
_FIRST_CALLS = 6  # until nothing is compiled any more, at most
Parts = Mapping[str, float]
Patch = tuple[Any, str, Any]


class WatchedModule:
    """A copy of a module, optimized with ``options``, that is called with copies of the arguments of one call.

    ``compiles``: why its calls compile still after the first ones; empty where they do not. Raises CaptureError where
    it cannot be copied, and what the call raises.
    """

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> None:
        twin, self._args, self._kwargs = twin_of(model, args, kwargs)
        self._model = optimized_module(twin)
        self._clock = PartClock()
        forward = twin.__dict__["forward"]
        forward.dispatcher = _Dispatcher(replace(options, fallback="silent", verify=None), self._clock)
        self._dispatcher: _Dispatcher = forward.dispatcher
        self.results: list[torch.Tensor] = []
        self._grads: list[torch.Tensor] = []
        self._devices = {
            t.device for t in (*twin.parameters(), *tree_leaves((self._args, self._kwargs))) if _is_on_cuda(t)
        }
        self.compiles = self._warm_up()
        self._patches = list(self._parts())

    @property
    def pieces(self) -> tuple[int, int]:
        """Pieces that a call runs, and how many of them in eager PyTorch."""
        stats = self._dispatcher.stats
        eager, ran = stats.eager_pieces, self._dispatcher.ran
        self.forward()
        eager_pieces = stats.eager_pieces - eager
        return eager_pieces + self._dispatcher.ran - ran, eager_pieces

    def forward(self) -> None:
        """One call."""
        result = self._model(*self._args, **self._kwargs)
        self.results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        self._wait()

    def prepare(self) -> None:
        """Nothing has to stand ready for a call."""

    def prepare_backward(self) -> None:
        """A call that ``backward`` may follow, and gradients of its results."""
        self.forward()
        self._grads = [torch.ones_like(t) for t in self.results]
        for tensor in (*self._model.parameters(), *filter(_is_leaf, tree_leaves((self._args, self._kwargs)))):
            tensor.grad = None

    def backward(self) -> None:
        """The gradients of one call."""
        torch.autograd.backward(self.results, self._grads)
        self._wait()

    def parts(self, call: Callable[[], None]) -> Parts:
        """The nanoseconds of one call of ``forward`` or ``backward``, by parts."""
        with self._swap_in():
            return self._clock.time(PYTHON, call)

    # ---------------------------------------------------------------- what is watched

    def _warm_up(self) -> str:
        for _ in range(_FIRST_CALLS):
            looked, calls = Backend.frames(), self._dispatcher.stats.calls
            self.prepare_backward()
            if self.results:
                self.backward()
            if Backend.frames() == looked and calls:
                return ""
        return self._dispatcher.latest_change or "something in it is new"

    def _parts(self) -> Iterator[Patch]:
        compiled: CompiledForward | None = self._dispatcher.compiled
        if compiled is None:
            return
        yield compiled, "find", self._clock.wrap(GUARDS, compiled.find)
        run = self._clock.wrap(COMPILING if self.compiles else DYNAMO, compiled.run)
        run.region = compiled.run.region  # type: ignore[attr-defined]
        yield compiled, "run", run
        for graph in self._dispatcher.graphs:
            yield from self._parts_of_piece(graph)

    def _parts_of_piece(self, graph: CompiledPiece) -> Iterator[Patch]:
        program, wrap = graph.program, self._clock.wrap
        yield graph, "run", wrap(BOUNDARY, graph.run)
        yield program, "run", wrap(BINDING, program.run)
        yield program, "gradients", wrap(BINDING, program.gradients)
        for entry in (program.forward, program.backward):
            for placed in () if entry is None else entry.places():
                yield from self._parts_of_entry(placed)

    def _parts_of_entry(self, entry: ExecutableEntry) -> Iterator[Patch]:
        yield entry, "executable", _WatchedExecutable(entry.executable, self._clock)
        for memory in entry.known_memory():
            yield memory, "outputs", [self._clock.wrap(ALLOCATION, make) for make in memory.outputs]
            if memory.saved is not None:
                yield memory, "saved", self._clock.wrap(ALLOCATION, memory.saved)

    @contextmanager
    def _swap_in(self) -> Iterator[None]:
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in self._patches]
        for owner, name, value in self._patches:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)

    def _wait(self) -> None:
        for device in self._devices:
            self._clock.wrap(WAITING, torch.cuda.synchronize)(device)


class _Dispatcher(Dispatcher):
    """Times the pieces that stay in eager PyTorch."""

    def __init__(self, options: Options, clock: PartClock) -> None:
        super().__init__(options)
        self._clock = clock

    @property
    def compiled(self) -> CompiledForward | None:
        """What was made of the module's forward."""
        return self._compiled

    @property
    def latest_change(self) -> str:
        """What did not hold when Dynamo looked at the code again."""
        return next(reversed(self._changed.values()), "")

    @property
    def ran(self) -> int:
        """How often compiled pieces have run."""
        return 0 if self._compiled is None else self._compiled.backend.ran

    def _backend(self) -> Backend:
        return _Backend(self.options, self.stats, self._refuse, self._clock)


class _Backend(Backend):
    def __init__(self, options: Options, stats: Stats, refused: Refused, clock: PartClock) -> None:
        super().__init__(options, stats, refused)
        self._clock = clock

    def eager(self, forward: Callable[..., Any], is_chosen: bool = False) -> Callable[..., Any]:
        return self._clock.wrap(EAGER, super().eager(forward, is_chosen))


class _WatchedExecutable:
    """An executable whose runs tell what its kernels took, and how long this thread did not run."""

    def __init__(self, executable: Executable, clock: PartClock) -> None:
        self._executable, self._clock = executable, clock
        self._is_timed = not executable.manifest.has_stream  # a device's kernels run while the host goes on
        self._parts = [_part(kernel.library) for kernel in executable.manifest.kernels]
        self._run_timed = clock.wrap(FRAME, executable.run_timed if self._is_timed else executable.run)
        self.run = clock.wrap(WATCH, self._run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def _run(self, pointers: Sequence[int], symbols: tuple[int, ...] = ()) -> None:
        if not self._is_timed:
            self._run_timed(pointers, symbols)
            return
        times = (ctypes.c_int64 * (len(self._parts) + 1))()
        own, wall = time.thread_time_ns(), time.perf_counter_ns()
        self._run_timed(pointers, symbols, times)
        wall, own = time.perf_counter_ns() - wall, time.thread_time_ns() - own
        counts: Counter[str] = Counter()
        for part, (begin, end) in zip(self._parts, itertools.pairwise(times)):
            counts[part] += end - begin
        # threads meet at the end of a kernel: this one waits in them, in each for its share of the time
        waiting = min(max(0, wall - own), counts.total())
        runs = 1 - waiting / counts.total() if counts.total() else 1.0
        self._clock.move(FRAME, {WAITING: waiting, **{part: spent * runs for part, spent in counts.items()}})


def _part(library: str) -> str:
    if not library:
        return GENERATED
    return PYTORCH if library in OF_PYTORCH else LIBRARIES


def _is_on_cuda(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _is_leaf(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad
