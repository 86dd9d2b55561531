"""Calls of a program on a device as graphs: one launch starts what the host would start kernel by kernel.

A graph holds the addresses with which it was recorded. In a loop torch's allocator gives a call the blocks that an
earlier one had, so a graph is recorded when the same addresses come back, and serves the calls that have them: nothing
is copied to a place of the graph's own, and no result is written over that a caller still holds. Recording costs a
call's time and memory of the device, so launches have to pay for it: where addresses wander, few graphs are recorded.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch

from daceopt.errors import DaceoptError
from daceopt.torch_internals import cuda_state

logger = logging.getLogger("daceopt.dispatch")

SWITCH = "DACEOPT_CUDA_GRAPHS"
GRAPHS = 16
"""Graphs that one program has at most on one device."""
_CALLS_BEFORE = 2  # with the same addresses, until a graph is recorded: kernels are loaded then, and algorithms chosen
_WATCHED = 64  # keys whose calls are counted
_CREDIT = 4  # graphs that a program may record without use
_USES = 8  # launches of graphs that pay for recording another one
_FEW = 3  # kernels, below which their launches cost no more than that of a graph


class Recorded(Protocol):
    """A call that can be started again with the addresses that it had."""

    def launch(self) -> None:
        """Start it on the current stream."""

    def release(self) -> None:
        """Wait until it runs no more."""


Start = Callable[[torch.Tensor | None], None]
"""Starts a program's kernels on the current stream; the tensor holds its seed."""
Record = Callable[[Callable[[], None]], Recorded]
"""Records what is started, without doing it."""


class CallGraphs:
    """The graphs of one program on one device, by what decides what its kernels do: the key of a call.

    ``recorded`` and ``launched`` count what has been done.
    """

    def __init__(self, device: torch.device, record: Record) -> None:
        self._device = device
        self._record: Record | None = record
        self._graphs: OrderedDict[Hashable, tuple[Recorded, torch.Tensor | None]] = OrderedDict()  # with their seeds
        self._calls: OrderedDict[Hashable, int] = OrderedDict()
        self._lock = threading.Lock()  # a graph's seed is set and it is launched by one thread at a time
        self.recorded = 0
        self.launched = 0

    def launch(self, key: Hashable, start: Start, seed: int | None) -> bool:
        """Launch the graph of ``key``, recorded now if it is time; False where the caller has to start the program."""
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
            elif not (self._is_due(key) and self._add(key, start, seed is not None)):
                return False
            graph, seeds = self._graphs[key]
            if seeds is not None:
                seeds.fill_(seed)  # by a kernel of the same stream, before the graph's
            graph.launch()
            self.launched += 1
            return True

    def _is_due(self, key: Hashable) -> bool:
        if self._record is None or self.recorded >= _CREDIT + self.launched // _USES:
            return False
        before = self._calls.pop(key, 0)
        if before >= _CALLS_BEFORE:
            return True
        self._calls[key] = before + 1
        if len(self._calls) > _WATCHED:
            self._calls.popitem(last=False)
        return False

    def _add(self, key: Hashable, start: Start, seeded: bool) -> bool:
        """Whether there is a graph of ``key`` now."""
        assert self._record is not None
        with torch.inference_mode(False):  # later calls may be outside of it, and write it as well
            seeds = torch.zeros(1, dtype=torch.int64, device=self._device) if seeded else None
        try:
            graph = self._record(lambda: start(seeds))
        except (RuntimeError, DaceoptError) as error:  # what the driver or torch refuses while it records
            logger.warning("no graph of a program's calls, which start kernel by kernel from now on: %s", error)
            self._record = None
            return False
        if len(self._graphs) >= GRAPHS:
            _, (oldest, _) = self._graphs.popitem(last=False)
            oldest.release()
        self._graphs[key] = graph, seeds
        self.recorded += 1
        return True


def graphs_for(device: torch.device, kernels: int) -> CallGraphs | None:
    """What records the calls of a program of so many kernels; None where nothing would be gained, or by the user's
    wish (``DACEOPT_CUDA_GRAPHS=0``)."""
    if device.type != "cuda" or kernels < _FEW or os.environ.get(SWITCH, "1") == "0":
        return None
    return CallGraphs(device, partial(_record, device))


def _never() -> bool:
    return False


are_recorded: Callable[[], bool] = torch.cuda.is_current_stream_capturing if torch.backends.cuda.is_built() else _never
"""Whether the caller is itself recording what the current stream is given."""


# ---------------------------------------------------------------- CUDA


class _Place:
    """Where calls of one stream are recorded. Their graphs run one after the other, so they share scratch memory."""

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = torch.cuda.Stream(device)  # the one that is always there cannot be recorded
        self.graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self.lock = threading.Lock()

    def pool(self) -> tuple[Any, Any]:
        """The memory of the graphs that there are, and one of them, without which it would not last."""
        keeper = next(iter(self.graphs), None)
        return (torch.cuda.graph_pool_handle() if keeper is None else keeper.pool()), keeper


_places: dict[tuple[torch.device, int], _Place] = {}


def _record(device: torch.device, start: Callable[[], None]) -> Recorded:
    """A graph of what ``start`` gives to the current stream of ``device``, which is the current device."""
    stream = torch.cuda.current_stream(device)
    place = _places.get((device, stream.cuda_stream)) or _places.setdefault(
        (device, stream.cuda_stream), _Place(device)
    )
    graph = torch.cuda.CUDAGraph()
    with place.lock, torch.cuda.stream(place.stream), _NoCollection():
        pool, _keeper = place.pool()
        # products keep a workspace for each stream: this one has to be of the graph's memory, and no one else's later
        cuda_state.clear_product_workspaces()
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                start()
            finally:
                _end(device, graph, pool)
        finally:
            cuda_state.clear_product_workspaces()
        place.graphs.add(graph)
    logger.info("a graph of a program's calls on %s is recorded", device)
    return _Graph(device, graph)


_refused: list[torch.cuda.CUDAGraph] = []


def _end(device: torch.device, graph: torch.cuda.CUDAGraph, pool: object) -> None:
    """End a recording. Raises RuntimeError where something was started that cannot be recorded, as a wait."""
    try:
        graph.capture_end()
    except RuntimeError:
        # torch leaves before its allocator and its generator know that the recording is over
        _refused.append(graph)  # which the allocator may still ask
        generator = torch.cuda.default_generators[device.index]
        cuda_state.end_allocation(device.index, pool)
        with suppress(RuntimeError, AttributeError):
            generator.graphsafe_set_state(generator.clone_state())
        raise


class _Graph:
    def __init__(self, device: torch.device, graph: torch.cuda.CUDAGraph) -> None:
        self._device, self._graph = device, graph

    def launch(self) -> None:
        self._graph.replay()

    def release(self) -> None:
        torch.cuda.synchronize(self._device)


class _NoCollection:
    """No garbage collection: what it frees might call what a recording does not allow."""

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()
