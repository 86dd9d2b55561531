"""A kernel that computes what it reads of another one's results itself, at whatever elements it reads them.

``fusion.merge`` joins kernels that walk memory alike; this takes what is shifted, flipped, stepped, or read in part
(Rausch et al., DaCeML, section 5.2: offset and partially equal spaces; DaCe's ``OTFMapFusion``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.data.provenance import fused_label
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.view_index import source_index
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment, substitute, symbol_like
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import dim


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
    index: tuple[Any, ...]


def evaluations(graph: Graph, first: Kernel, second: Kernel) -> list[Evaluation]:
    """Where ``second`` reads what ``first`` writes. Raises Unsupported for run-time indices, parts, and views that have
    no index for each dimension."""
    results = {a.array for a in first.writes()}
    evaluations = []
    for k, stage in enumerate(second.stages):
        for connector, access in stage.reads.items():
            if access.array in second.locals or results.isdisjoint(sources := graph.sources(access.array)):
                continue
            if len(sources) > 1:
                raise Unsupported(f"{access.array} is written in parts")
            if None in access.index:
                raise Unsupported(f"{access.array} is read at a run-time index")
            index = source_index(graph, access.array, sources[0], access.index)
            if index is None:
                raise Unsupported(f"{access.array} has no index for each dimension of {sources[0]}")
            evaluations.append(Evaluation(k, connector, sources[0], tuple(map(dim, index))))
    return evaluations


def inline(graph: Graph, first: Kernel, second: Kernel) -> Kernel:
    """``second`` without reads of what ``first`` writes; nothing keeps that from being inlined (``why_not_inlined``).

    Raises Unsupported as ``evaluations`` does.
    """
    stages = list(second.stages)
    for k in range(len(stages)):
        own = [e for e in evaluations(graph, first, second) if e.stage == k]
        if own:
            stages[k] = _Inlining(graph, first, stages[k]).stage_with(own)
    return replace(second, label=fused_label(first.label, second.label), stages=stages, schedule=None)


def iteration_writing(kernel: Kernel, access: Access, element: Sequence[Any]) -> dict[Any, Any]:
    """The iteration of ``kernel`` that writes ``element`` by ``access``, which writes each element once."""
    places: dict[Any, Any] = {}
    for written, value in zip(access.index, element, strict=True):
        form = affine(written, kernel.extents)
        if form.terms:
            ((p, factor),) = form.terms
            places[p] = dim(sympy.expand((sympy.sympify(value) - form.constant) * factor))  # factor: 1 or -1
    return places


@dataclass
class _Inlining:
    """One statement that gets the code of ``first`` for each element that it reads."""

    graph: Graph
    first: Kernel
    stage: Stage
    _reads: dict[str, Access] = field(default_factory=dict)
    _code: list[Assignment] = field(default_factory=list)
    _known: dict[Any, Assignment] = field(default_factory=dict)

    def stage_with(self, evaluations: list[Evaluation]) -> Stage:
        self._reads = {c: a for c, a in self.stage.reads.items() if c not in {e.connector for e in evaluations}}
        for each in evaluations:
            value = self._known.get((each.array, each.index)) or self._compute(each)
            self._known[each.array, each.index] = value
            dtype = types.compute_type(self.graph.dtype(each.array))
            self._code.append(Assignment(scalar.symbol(each.connector, dtype), value.symbol, dtype))
        return replace(self.stage, reads=self._reads, assignments=(*self._code, *self.stage.assignments))

    def _compute(self, evaluation: Evaluation) -> Assignment:
        """The code of ``first`` for one element; returns the assignment of the result."""
        (producer,) = self.first.stages
        write, access = next((c, a) for c, a in producer.writes.items() if a.array == evaluation.array)
        stage = producer.subs(iteration_writing(self.first, access, evaluation.index), self.stage.params)
        prefix = self._fresh_prefix()
        names: dict[Any, Any] = {}
        read = {s for a in stage.assignments for s in a.expr.free_symbols if str(s) in stage.reads}
        for symbol in sorted(read, key=str):
            names[symbol] = symbol_like(symbol, self._read(stage.reads[str(symbol)], prefix))
        for assignment in stage.assignments:
            target = symbol_like(assignment.symbol, f"{prefix}_{assignment.symbol}")
            result = Assignment(target, substitute(assignment.expr, names), assignment.dtype)
            names[assignment.symbol] = target
            self._code.append(result)
            if str(assignment.symbol) == write:
                return result
        raise AssertionError(f"{self.first.label} does not assign {write}")

    def _fresh_prefix(self) -> str:
        """One with which no name of the statement begins: it may have such code already."""
        names = [*self.stage.reads, *self.stage.writes, *(str(a.symbol) for a in self.stage.assignments)]
        names += [str(a.symbol) for a in self._code]
        prefixes = (f"at{k}" for k in count())
        return next(p for p in prefixes if not any(n.startswith(p) for n in names))

    def _read(self, access: Access, prefix: str) -> str:
        known = next((c for c, a in self._reads.items() if a == access), None)
        if known is None:
            known = f"{prefix}read{len(self._reads)}"
            self._reads[known] = access
        return known
