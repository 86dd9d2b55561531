"""Let what is concatenated or padded be computed where it will stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import sympy
from dace import nodes

from daceopt.errors import Unsupported
from daceopt.ir import parts, types
from daceopt.ir.graph import Graph, Shape, row_major
from daceopt.ir.kernel import Kernel, Stage
from daceopt.ir.provenance import label_of
from daceopt.ir.views import follow
from daceopt.ops.library import (
    Contraction,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    Pool,
    PoolBackward,
)
from daceopt.splits import split, why_not
from daceopt.splits.narrowing import narrowed, settled_at
from daceopt.transform import NearMiss, Site, Transformation

_CONVOLUTIONS = (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)


@dataclass(frozen=True)
class PartWriting(Transformation):
    """Write the operands of a concatenation, of zero padding, or of a sum of gradients of slices into its result.

    before:  a = f(x)     b = g(x)     for i: y[i] = i < n ? a[i] : b[i - n]
    after:   a = f(x) in y[0:n]     b = g(x) in y[n:m]

    A kernel that chooses by the place along one axis is split where the choice changes. What then copies one whole
    array goes: the array stands in its part of the result from the start, and its other readers read it there. What
    does not (an input, an array that stands elsewhere already, one that a library wants dense) is copied as before.
    ``least``: bytes that must be saved, for each part is a kernel of its own.
    """

    level: ClassVar[str] = "local"
    least: int = 1 << 16

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        join = _join_of(graph, node)
        if join is None or graph.parts_of(join.whole):
            return
        segments = list(join.segments(graph))
        free: dict[str, Segment] = {}
        for segment in segments:
            if segment.copied is not None and segment.copied not in free:
                reason = _why_not_there(graph, segment.copied, join.whole, node)
                if reason is None:
                    free[segment.copied] = segment
                else:
                    yield NearMiss(node, reason)
        saved = 2 * sum(_bytes(graph, name) for name in free)
        if saved < self.least or 2 * saved < _bytes(graph, join.whole):
            return
        if (reason := why_not(graph, node, join.axis)) is not None:
            yield NearMiss(node, reason)
            return
        placed = {s.start: name for name, s in free.items()}
        yield Site(graph, (node,), {"join": join, "extents": [s.extent for s in segments], "placed": placed})

    def apply(self, site: Site) -> None:
        graph, join = site.graph, site["join"]
        split(graph, site.nodes[0], join.axis, site["extents"])
        for part in graph.parts_of(join.whole):
            starts = graph.part(part).starts
            array = site["placed"].get(starts[join.axis])
            if array is not None:
                graph.remove(graph.producer(part))
                parts.detach(graph, part)
                parts.attach(graph, array, join.whole, starts)
                graph.drop(part)


@dataclass(frozen=True)
class Segment:
    """Elements ``start`` to ``start + extent`` along the axis; ``copied``: the array that they are as a whole."""

    start: int
    extent: int
    copied: str | None


@dataclass(frozen=True)
class _Join:
    """A kernel of one stage that writes ``whole``, and the places along ``axis`` where its choices change."""

    kernel: Kernel
    whole: str
    axis: int
    places: tuple[int, ...]

    def segments(self, graph: Graph) -> Iterator[Segment]:
        stage, p = self.kernel.stages[0], next(iter(self.kernel.stages[0].writes.values())).index[self.axis]
        ends = [*self.places, int(graph.shape(self.whole)[self.axis])]
        for start, end in zip((0, *self.places), ends, strict=True):
            extents = {**self.kernel.extents, p: end - start}
            inside = narrowed(stage.subs({p: sympy.sympify(p) + start}, stage.params), extents)
            yield Segment(start, end - start, _copied(graph, inside, self.axis, start, extents))


def _join_of(graph: Graph, node: Any) -> _Join | None:
    if not isinstance(node, nodes.MapEntry):
        return None
    try:
        kernel = Kernel.extract(graph, node)
    except Unsupported:
        return None
    if len(kernel.stages) != 1 or len(kernel.stages[0].writes) != 1:
        return None
    stage = kernel.stages[0]
    (write,) = stage.writes.values()
    places = settled_at(stage, kernel.extents)
    if write.wcr or len(places) != 1:
        return None
    ((p, found),) = places.items()
    shape = graph.shape(write.array)
    axis = next((k for k, e in enumerate(write.index) if e == p), None)
    if axis is None or not isinstance(shape[axis], int) or graph.is_part(write.array):
        return None
    inside = tuple(sorted(k for k in found if 0 < k < shape[axis]))
    return _Join(kernel, write.array, axis, inside) if inside else None


def _copied(graph: Graph, stage: Stage, axis: int, start: int, extents: Any) -> str | None:
    """The array that ``stage`` copies, element by element and as a whole; None where it does anything else."""
    (write,) = stage.writes.values()
    if len(stage.assignments) != 1 or len(stage.reads) != 1:
        return None
    ((conn, read),) = stage.reads.items()
    same = str(stage.assignments[0].expr) == conn and graph.dtype(read.array) == graph.dtype(write.array)
    if not same or types.is_narrow(graph.dtype(write.array)) or None in read.index:
        return None
    index = [e for e in read.index if e is not None]
    origin = [sympy.expand(e - start) if k == axis else e for k, e in enumerate(write.index) if e is not None]
    box = tuple(extents.get(e, 1) for e in origin)
    same = len(box) == len(index) and all(sympy.expand(e - f) == 0 for e, f in zip(index, origin))
    return read.array if same and box == graph.shape(read.array) else None


# -------------------------------------------------------------------- who can write and read a part


def _why_not_there(graph: Graph, array: str, whole: str, join: Any) -> str | None:
    """Why ``array`` cannot stand in ``whole`` from the start; None where it can. ``join`` copies it there now."""
    maker = graph.producers(array)
    if not maker:
        return f"{array} is given"
    if reason := parts.why_no_part(graph, array):
        return f"{array} is {reason}"
    steps = graph.strides(whole)
    try:
        layouts = {array: steps} | {v: s for v, (s, _) in follow(graph, array, graph.strides(array), steps).items()}
    except ValueError as error:
        return str(error)
    for name, strides in layouts.items():
        for node in [*graph.consumers(name), *(maker if name == array else ())]:
            if node is not join and not _takes(node, graph.shape(name), strides):
                return f"{label_of(node)} takes {name} in other strides than {strides}"
    return None


def _takes(node: Any, shape: Shape, strides: Shape) -> bool:
    """Does ``node`` read or write an array of these strides as fast as it is now?"""
    if isinstance(node, (nodes.MapEntry, Pool, PoolBackward)):
        return True
    if isinstance(node, Contraction):
        return len(shape) < 2 or 1 in strides[-2:]
    return isinstance(node, _CONVOLUTIONS) and _is_dense(shape, strides)


def _is_dense(shape: Shape, strides: Shape) -> bool:
    """Are there no gaps between the elements, in whatever order they stand?"""
    longer = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    if not all(isinstance(s, int) for _, s in longer):
        return False
    longer.sort(key=lambda pair: -pair[1])
    return tuple(s for _, s in longer) == row_major([n for n, _ in longer])


def _bytes(graph: Graph, name: str) -> int:
    """Sizes that are open count as 64."""
    size = sympy.sympify(graph.size(name))
    return int(size.xreplace(dict.fromkeys(size.free_symbols, sympy.Integer(64)))) * types.itemsize(graph.dtype(name))
