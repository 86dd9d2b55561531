"""How long oneDNN's convolutions take in each layout of their images: measured once for each shape on each machine, by
the clock of one core, which stands still while others have it: what is measured beside other work is kept as well.

Like ``cost.rates`` they say which of several ways is taken, never what is right.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dace

from daceopt import system
from daceopt.codegen.compiler import CompileJob, compile_objects, link, object_key
from daceopt.cost.limits import assumed_limits
from daceopt.errors import Unsupported
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes import blocked
from daceopt.ir.nodes.library import ConvolutionBackwardData, ConvolutionBackwardWeights, outlasts_calls
from daceopt.libs import base, onednn
from daceopt.store.cache import default_cache, key
from daceopt.store.values import Values

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

LEAST_FLOPS = 3e5  # of a convolution whose time is worth knowing
_BUDGET = 0.02  # seconds of runs for each shape
_IMAGES, _MOST_IMAGES = 2, 16
_PIXELS = 384  # of the results: with fewer, kernels of channels that are innermost are up to 15 % slower
_EXTENTS = 4  # where they begin among the numbers of a call
_KIND, _VERSION = "convolution-times", 5
_LIBRARY = "times.so"
_PASSES = {ConvolutionBackwardData: 1, ConvolutionBackwardWeights: 2}


class Times(NamedTuple):
    """Seconds of a convolution whose images all have one layout."""

    first: float
    last: float
    blocked: float


def times(node: Node, graph: Graph, passes: Sequence[int | None] = (None,)) -> Times | None:
    """Those of the convolution ``node``, or of all ``passes`` over its operands: 0 forward, 1 to the data, 2 to the
    weights, None the node itself.

    None where they are not known and cannot be measured: for sizes that are open, for other types than float32, for
    small ones, where another library convolves, and for another machine.
    """
    if assumed_limits() is not None or not _is_measurable(node, graph):
        return None
    calls = [_sample(_numbers(node, graph, p)) for p in passes]
    entries = [(_lookup(numbers), share) for numbers, share in calls]
    if any(one is None for one, _ in entries):
        return None
    return Times(*(sum(one[k] / share for one, share in entries if one) for k in range(len(Times._fields))))


def _is_measurable(node: Node, graph: Graph) -> bool:
    names = node.operands(graph).values()
    if any(graph.dtype(n) != dace.float32 or not isinstance(graph.size(n), int) for n in names):
        return False
    if float(node.flops(graph)) < LEAST_FLOPS:
        return False
    try:
        return base.choose(node, graph).name == onednn.OneDnn.name
    except Unsupported:
        return False


def _numbers(node: Node, graph: Graph, direction: int | None) -> tuple[int, ...]:
    """What the call gets: see ``src/convolution_times.cpp``. Weights that outlast calls are prepared before."""
    names, rank = node.operands(graph), node.spatial(graph)
    is_packed = direction is None and "W" in names and outlasts_calls(graph, names["W"])
    direction = _PASSES.get(type(node), 0) if direction is None else direction

    def image(*connectors: str) -> Sequence[Any]:
        return blocked.shape_of(graph, node, next(c for c in connectors if c in names))

    weights = graph.shape(names["W" if "W" in names else "dW"])
    shapes = [*image("X", "dX"), *weights, *image("Y", "dY")]
    window = [n for values in node.window(rank) for n in values]
    return tuple(map(int, (direction, is_packed, node.group, rank, *shapes, *window)))


def _sample(numbers: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """What one core is to do, and its time as a multiple of that of all cores for the whole call. It is the call with a
    few images, where these divide the batch: images take equally long if there are enough pixels to fill registers, so
    one measurement serves all batches."""
    *kind, rank, images = numbers[: _EXTENTS + 1]
    results = _EXTENTS + 2 * (rank + 2)  # where the extents of the results begin
    few, pixels = _IMAGES, math.prod(numbers[results + 2 : results + 2 + rank])
    while few * pixels < _PIXELS and few < _MOST_IMAGES:
        few *= 2
    cores = float(system.cores())
    if images <= few or images % few:
        return numbers, cores
    return (*kind, rank, few, *numbers[_EXTENTS + 1 : results], few, *numbers[results + 1 :]), cores * few / images


@cache
def _lookup(numbers: tuple[int, ...]) -> Times | None:
    identity = key(_KIND, _VERSION, system.fingerprint(), system.cores(), onednn.OneDnn().version(), numbers)
    (times,) = _TIMES.make(identity, lambda: (_measure(numbers),))
    return times


def _parse(content: list[Any]) -> tuple[Times | None]:
    (times,) = content
    return (None if times is None else Times(*map(float, times)),)


_TIMES = Values(_KIND, _parse)


def _measure(numbers: tuple[int, ...]) -> Times | None:
    seconds = (ctypes.c_double * len(Times._fields))()
    failed = _library()((ctypes.c_int64 * len(numbers))(*numbers), ctypes.c_double(_BUDGET), seconds)
    return None if failed else Times(*seconds)


@cache
def _library() -> Callable[..., int]:
    """The function that measures, compiled once."""
    import torch  # noqa: F401  (brings the OpenMP that programs run on)

    built_of = jobs()
    identity = key(_KIND, *map(object_key, built_of))
    entry = default_cache().build(f"{_KIND}-library", identity, lambda folder: _link(folder, built_of))
    function = ctypes.CDLL(str(entry / _LIBRARY)).daceopt_convolution_times
    function.restype = ctypes.c_int
    return function


def jobs() -> tuple[CompileJob, ...]:
    """The sources of what measures."""
    return onednn.OneDnn().support(*onednn.SOURCES, "convolution_times.cpp", header="onednn.h").jobs


def _link(folder: Path, sources: Sequence[CompileJob]) -> None:
    link(compile_objects(sources), folder / _LIBRARY, onednn.flags())
