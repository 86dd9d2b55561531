"""Let what is concatenated or padded be computed where it will be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import sympy

from daceopt.ir.data import parts
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ops.families.strided import why_not_laid_out
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.splits import split, why_not
from daceopt.splits.narrowing import narrow, places_settled


@dataclass(frozen=True)
class PartWriting(Transformation):
    """Write the operands of a concatenation, of zero padding, or of a sum of gradients of slices into its result.

    before:  a = f(x)     b = g(x)     for i: y[i] = i < n ? a[i] : b[i - n]
    after:   a = f(x) in y[0:n]     b = g(x) in y[n:m]

    A kernel that chooses by the place along one axis is split where the choice changes. A kernel that
    copies one whole array into a part goes: the array is there from the start, and its other readers read it there.
    What cannot (an input, an array that is elsewhere already, one that a library wants dense) is copied as before.
    ``least``: bytes that a split must save, for each part is a kernel of its own.
    """

    level: ClassVar[str] = "local"
    least: int = 1 << 16

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        stage = _only_stage(graph, node)
        if stage is None:
            return
        (write,) = stage.writes.values()
        if graph.is_part(write.array):
            array = _copied_array(graph, stage, _extents(graph, stage))
            if array is not None:
                reason = _why_not_there(graph, array, write.array, node)
                yield Site(graph, (node,), {"array": array}) if reason is None else NearMiss(node, reason)
        elif (join := _join_of(graph, stage)) is not None:
            yield from self._split(graph, node, join)

    def _split(self, graph: Graph, node: Node, join: _Join) -> Iterable[Site | NearMiss]:
        free: set[str] = set()
        for array in filter(None, join.copies(graph)):
            if (reason := _why_not_there(graph, array, join.whole, node)) is None:
                free.add(array)
            else:
                yield NearMiss(node, reason)
        saved = 2 * sum(_bytes(graph, name) for name in free)
        if saved < self.least or saved < _bytes(graph, join.whole):
            return
        reason = why_not(graph, node, join.axis)
        yield Site(graph, (node,), {"join": join}) if reason is None else NearMiss(node, reason)

    def apply(self, site: Site) -> None:
        graph, (node,) = site.graph, site.nodes
        if "join" in site.found:
            split(graph, node, site["join"].axis, [end - start for start, end in site["join"].segments])
            return
        (part,) = graph.outputs_of(node)
        whole, starts = graph.part(str(part))
        graph.remove(node)
        graph.detach(str(part))
        graph.drop(str(part))
        graph.attach(site["array"], whole, starts)


@dataclass(frozen=True)
class _Join:
    """A stage that writes ``whole``, and from where to where along ``axis`` its choices are the same."""

    stage: Stage
    whole: str
    axis: int
    segments: tuple[tuple[int, int], ...]

    def copies(self, graph: Graph) -> Iterator[str | None]:
        """The array that a segment copies, for each."""
        p = next(iter(self.stage.writes.values())).index[self.axis]
        for start, end in self.segments:
            extents = {**_extents(graph, self.stage), p: end - start}
            shifted = self.stage.subs({p: sympy.sympify(p) + start}, self.stage.params)
            writes = self.stage.writes  # which begin at 0 of the part
            yield _copied_array(graph, replace(narrow(shifted, extents), writes=writes), extents)


def _only_stage(graph: Graph, node: Node) -> Stage | None:
    """The stage of a kernel that has but one, with one result that is not reduced."""
    if not isinstance(node, KernelNode):
        return None
    kernel = node.kernel
    if len(kernel.stages) != 1 or len(kernel.stages[0].writes) != 1:
        return None
    stage = kernel.stages[0]
    return None if next(iter(stage.writes.values())).wcr else stage


def _extents(graph: Graph, stage: Stage) -> dict[sympy.Symbol, Dim]:
    """Parameter -> extent, of a stage that writes each element of its result once."""
    (write,) = stage.writes.values()
    return {e: n for e, n in zip(write.index, graph.shape(write.array), strict=False) if e in stage.params}


def _join_of(graph: Graph, stage: Stage) -> _Join | None:
    (write,) = stage.writes.values()
    if not _copies_somewhere(stage):
        return None
    shape, extents = graph.shape(write.array), _extents(graph, stage)
    places = places_settled(stage, extents)
    if len(places) != 1 or len(extents) != len(stage.params):
        return None
    ((p, ends_of),) = places.items()
    axis = write.index.index(p)
    if not isinstance(shape[axis], int):
        return None
    ends = [0, *sorted(k for k in ends_of if 0 < k < shape[axis]), shape[axis]]
    return _Join(stage, write.array, axis, tuple(pairwise(ends))) if len(ends) > 2 else None


def _copies_somewhere(stage: Stage) -> bool:
    """May what it writes be, at some place, what it has read there, and nothing that it computes? Cheap."""
    values = {str(a.symbol): a.expr for a in stage.assignments}
    waiting = [values[connector] for connector in stage.writes]
    while waiting:
        expr = waiting.pop()
        if isinstance(expr, scalar.select):
            waiting += expr.args[1:]
        elif isinstance(expr, scalar.load) or str(expr) in stage.reads:
            return True
        elif expr.is_Symbol and str(expr) in values:
            waiting.append(values[str(expr)])
    return False


def _copied_array(graph: Graph, stage: Stage, extents: dict[sympy.Symbol, Dim]) -> str | None:
    """The array that ``stage`` copies, element by element and as a whole; None where it does anything else."""
    if stage.copy is None:
        return None
    read, write = stage.copy
    dtype = graph.dtype(write.array)
    if graph.dtype(read.array) != dtype or types.is_narrow(dtype):
        return None
    shape = tuple(extents.get(e, 1) for e in write.index)
    return read.array if read.index == write.index and graph.shape(read.array) == shape else None


# -------------------------------------------------------------------- who can write and read a part


def _why_not_there(graph: Graph, array: str, place: str, copy: KernelNode) -> str | None:
    """Why ``array`` cannot be in ``place``, or a box of it, from the start, where ``copy`` writes it now."""
    if not graph.producers(array):
        return f"{array} is given"
    if reason := parts.why_no_part(graph, array):
        return f"{array} is {reason}"
    return why_not_laid_out(graph, array, graph.strides(place), copy)


def _bytes(graph: Graph, name: str) -> int:
    """Sizes that are open count as 64."""
    size = sympy.sympify(graph.size(name))
    return int(size.xreplace(dict.fromkeys(size.free_symbols, sympy.Integer(64)))) * types.itemsize(graph.dtype(name))
