"""Several kernels as one kernel of all their statements, whatever elements one reads of what another writes.

``fusion.merge`` joins kernels whose loops are the same loops; here each keeps its own, what passes between them is a
local with the extents of the whole array, and a schedule has to say how the loops go together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from daceopt.errors import Unsupported
from daceopt.ir.access.iteration import apart
from daceopt.ir.data.provenance import fused_label
from daceopt.ir.fusion.fusion import expand_locals, written_to_locals
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.view_index import source_index
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, Shape, dim, hint
from daceopt.ir.scalar.types import DType


def join(graph: Graph, kernels: Sequence[Kernel], needed: Callable[[str], bool]) -> Kernel:
    """One kernel that does what ``kernels`` do, in their order (each after those whose results it reads).

    An array that one writes and another reads becomes the local ``<array>_tile``, its dimensions in the order of
    memory, in which it is read as the array would be, views seen through. ``needed(array)``: others read it, so that it
    is written as well. Each kernel keeps parameters of its own. Raises Unsupported for kernels with tiles of their own,
    for what is read at run-time indices or through a view without an index, and where what passes has a narrow type or
    is written in parts.
    """
    parts: list[Kernel] = []
    for kernel in kernels:
        parts.append(replace(apart(expand_locals(kernel), *parts), outer=()))
    results = {a.array for k in parts for a in k.writes()}
    places = (place_read(graph, r, results) for k in parts for r in k.reads())
    passed = {place[0] for place in places if place is not None}
    local = {n: kind for k in parts for n, kind in k.locals.items()}
    joint = _Joint(graph, tuple(sorted(passed)), frozenset(local), needed)
    stages = [joint.stage(s) for k in parts for s in k.stages]
    extents = {p: n for k in parts for p, n in k.extents.items()}
    return Kernel(reduce(fused_label, [k.label for k in parts]), extents, stages, (), local | joint.locals())


def place_read(graph: Graph, access: Access, results: Collection[str]) -> tuple[str, tuple[Any, ...]] | None:
    """Which of the arrays ``results`` is read by ``access``, views seen through, and at which element; None where it
    reads none of them.

    Raises Unsupported for run-time indices, for what is written in parts, and for views that have no index for each
    dimension.
    """
    source, *parts = graph.sources(access.array)
    if source not in results and not any(part in results for part in parts):
        return None
    if parts:
        raise Unsupported(f"{access.array} is written in parts")
    if None in access.index:
        raise Unsupported(f"{access.array} is read at a run-time index")
    index = source_index(graph, access.array, source, access.index)
    if index is None:
        raise Unsupported(f"{access.array} has no index for each dimension of {source}, or shows parts")
    return source, tuple(map(dim, index))


class _Joint:
    """Statements with locals in the place of the arrays that pass between them."""

    def __init__(self, graph: Graph, passed: Sequence[str], own: frozenset[str], needed: Callable[[str], bool]):
        """``own``: locals that the kernels have already."""
        self._graph, self._passed, self._own, self._needed = graph, passed, own, needed
        narrow = next((a for a in passed if types.is_narrow(graph.dtype(a))), None)
        if narrow is not None:
            raise Unsupported(f"{narrow} has the narrow type {graph.dtype(narrow)}, which memory rounds to")

    def locals(self) -> dict[str, tuple[DType, Shape]]:
        """The locals of what passes."""
        shapes = {a: self._graph.shape(a) for a in self._passed}
        return {_tile(a): (self._graph.dtype(a), self._in_memory(a, shape)) for a, shape in shapes.items()}

    def _in_memory(self, array: str, values: Sequence[Dim | None]) -> tuple[Dim | None, ...]:
        """``values``, one for each dimension, in the order in which the dimensions lie in memory."""
        strides = self._graph.strides(array)
        order = sorted(range(len(strides)), key=lambda k: hint(strides[k]), reverse=True)
        return tuple(values[k] for k in order)

    def _local(self, array: str, index: Sequence[Dim | None]) -> Access:
        return Access(_tile(array), self._in_memory(array, index))

    def stage(self, stage: Stage) -> Stage:
        """The statement with locals where it reads or writes what passes."""
        reads = {c: self._read(a) for c, a in stage.reads.items()}
        writes = {a.array: self._local(a.array, a.index) for a in stage.writes.values() if a.array in self._passed}
        return written_to_locals(replace(stage, reads=reads), writes, self._needed)

    def _read(self, access: Access) -> Access:
        place = None if access.array in self._own else place_read(self._graph, access, self._passed)
        return access if place is None else self._local(*place)


def _tile(array: str) -> str:
    """The local for what passes: another one than that of ``fusion.merge``, which has the loops' dimensions."""
    return f"{array}_tile"
