"""A kernel that computes what it reads of another one's results itself, at whatever elements it reads them.

``fusion.merge`` joins kernels that walk memory alike; this takes what is shifted, flipped, stepped, or read in part
(Rausch et al., DaCeML, section 5.2: offset and partially equal spaces; DaCe's ``OTFMapFusion``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.data.provenance import fused_label
from daceopt.ir.fusion.fusion import collapse
from daceopt.ir.fusion.joining import place_read
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar import types
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim, dim


def why_not_inlined(graph: Graph, kernel: Kernel) -> str | None:
    """Why no reader can compute the results of ``kernel`` itself; None where all may."""
    if len(kernel.stages) != 1 or kernel.locals or kernel.is_tiled:
        return f"{kernel.label} has several statements"
    (stage,) = kernel.stages
    for access in stage.writes.values():
        if access.wcr:
            return f"{kernel.label} reduces"
        if not is_bijective(access.index, graph.shape(access.array), kernel.extents):
            return f"{kernel.label} does not write each element of {access.array} in one iteration of its own"
    return None


@dataclass(frozen=True)
class Evaluation:
    """Statement ``stage`` reads element ``index`` of ``array``, which it could compute itself."""

    stage: int
    connector: str
    array: str
    index: tuple[Dim | None, ...]


def evaluations(graph: Graph, first: Kernel, second: Kernel) -> list[Evaluation]:
    """Where ``second`` reads what ``first`` writes. Raises Unsupported as ``place_read`` does."""
    results = {a.array for a in first.writes()}
    own = ((k, c, a) for k, s in enumerate(second.stages) for c, a in s.reads.items() if a.array not in second.locals)
    places = ((k, c, place_read(graph, access, results)) for k, c, access in own)
    return [Evaluation(k, connector, *place) for k, connector, place in places if place is not None]


def inline(graph: Graph, first: Kernel, second: Kernel) -> Kernel:
    """``second`` without reads of what ``first`` writes; nothing keeps that from being inlined (``why_not_inlined``).

    Raises Unsupported as ``evaluations`` does.
    """
    needed = evaluations(graph, first, second)
    own = [[e for e in needed if e.stage == k] for k in range(len(second.stages))]
    stages = [_computing(graph, first, stage, here) if here else stage for stage, here in zip(second.stages, own)]
    return replace(second, label=fused_label(first.label, second.label), stages=stages, schedule=None)


def iteration_writing(kernel: Kernel, access: Access, element: Sequence[object]) -> dict[Any, Any]:
    """The iteration of ``kernel`` that writes ``element`` by ``access``, which writes each element once."""
    places: dict[Any, Any] = {}
    for written, value in zip(access.index, element, strict=True):
        form = affine(written, kernel.extents)
        if form.terms:
            ((p, factor),) = form.terms
            places[p] = dim(sympy.expand((sympy.sympify(value) - form.constant) * factor))  # factor: 1 or -1
    return places


def _computing(graph: Graph, first: Kernel, stage: Stage, needed: Sequence[Evaluation]) -> Stage:
    """One statement that does what ``first`` does for each element that ``stage`` reads, and then that."""
    (producer,) = first.stages
    values: dict[sympy.Expr, str] = {}  # element -> the local that has it, under a name that no array has
    before: list[Stage] = []
    for each in needed:
        element = each.array, each.index
        if element not in values:
            values[element] = f"{each.array}@{len(values)}"
            write, access = next((c, a) for c, a in producer.writes.items() if a.array == each.array)
            here = producer.subs(iteration_writing(first, access, each.index), stage.params)
            before.append(here.with_writes({write: Access(values[element], ())}))
    reads = {e.connector: Access(values[e.array, e.index], ()) for e in needed}
    kinds = {name: (types.compute_type(graph.dtype(array)), ()) for (array, _), name in values.items()}
    both = Kernel(first.label, {}, [*before, replace(stage, reads={**stage.reads, **reads})], (), kinds)
    whole = collapse(both)
    assert whole is not None
    return whole.stages[0]
