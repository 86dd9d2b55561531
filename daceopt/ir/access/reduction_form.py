"""The canonical forms of reductions: any of them is one loop, or two of which one is reduced.

PANAMERA's dimension flattening (Zhao et al.) as APOLLO uses it (Zhao et al., MLSys 2022, sections 4.1 and 4.2): loops
are interchanged until those that the result keeps are together, and merged. In a y-reduce the inner loop is reduced,
in an x-reduce the outer one, in an all-reduce the only one. Which of both is inside follows from memory: the loop
that walks neighbouring elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import sympy

from daceopt.ir.access.dataflow import address
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel, Stage
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Parameter


@dataclass(frozen=True)
class ReductionForm:
    """``kind``: ``all-reduce``, ``x-reduce`` or ``y-reduce``; the extents of the loops that are kept and reduced, in
    the order in which they are merged; extents of 1 are no loops."""

    kind: str
    kept: tuple[Dim, ...]
    reduced: tuple[Dim, ...]

    @property
    def extents(self) -> tuple[Dim, Dim]:
        """Of both merged loops: the one that is kept, and the one that is reduced."""
        return dim(prod(self.kept)), dim(prod(self.reduced))

    def matches(self, other: ReductionForm) -> bool:
        """The same form over as many iterations?"""
        return self.kind == other.kind and self.extents == other.extents

    def __str__(self) -> str:
        own, reduced = self.extents
        if self.kind == "all-reduce":
            return f"all-reduce: for y < {reduced}"
        inner, outer = f"for y < {reduced}", f"for x < {own}"
        loops = (outer, inner) if self.kind == "y-reduce" else (inner, outer)
        return f"{self.kind}: {': '.join(loops)}"


def forms(graph: Graph, kernel: Kernel) -> list[ReductionForm]:
    """The form of each reduction of a kernel, in the order of its statements, each once.

    Locals are in the form of :func:`daceopt.ir.fusion.fusion.expand_locals`.
    """
    every = (form_of(graph, kernel, s, c) for s in kernel.stages for c in s.writes if s.reduced_params(c))
    return list(dict.fromkeys(every))


def form_of(graph: Graph, kernel: Kernel, stage: Stage, connector: str) -> ReductionForm:
    """The form of what ``stage`` reduces into ``connector``."""
    reduced = stage.reduced_params(connector)
    own = [p for p in stage.params if p not in reduced and kernel.extents[p] != 1]
    loops = [p for p in reduced if kernel.extents[p] != 1]
    kind = "all-reduce" if not own else "x-reduce" if _innermost(graph, kernel, stage) in own else "y-reduce"
    return ReductionForm(kind, tuple(kernel.extents[p] for p in own), tuple(kernel.extents[p] for p in loops))


def _innermost(graph: Graph, kernel: Kernel, stage: Stage) -> sympy.Symbol:
    """The loop that walks neighbouring elements of what the statement reads most of; None where none does."""
    most, innermost = 0, None
    for access in stage.reads.values():
        if access.array in kernel.locals:
            terms: list[tuple[sympy.Symbol, int]] = [(e, 1) for e in reversed(access.index) if isinstance(e, Parameter)]
            count, unit = len(terms), terms[0][0] if terms else None
        else:
            where = address(graph, access)
            count = 0 if where is None else len(where.terms)
            unit = None if where is None else next((p for p, step in where.terms if step == 1), None)
        if count > most:
            most, innermost = count, unit
    return innermost
