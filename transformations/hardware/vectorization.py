"""Choose the loop that runs in vector registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from daceopt.ir.references import Reference, StatementInstance
from daceopt.ir.schedule import Loop, Param
from daceopt.transformations.hardware._scheduling import Form, Nest, Scheduling

_LARGE = 1 << 10


@dataclass(frozen=True)
class Vectorization(Scheduling):
    """Move the loop along which most accesses have unit stride innermost, and make it a vector loop.

    before:  for i < m: for j < n: y[j, i] = f(x[j, i])
    after:   for j < n: vector for i < m: y[j, i] = f(x[j, i])

    ``volume``: accesses count by how many elements they touch, where caches do not make up for few of them.
    """

    volume: bool = False

    def decide(self, form: Form) -> Form | None:
        nests = [_vectorized(nest, form.bodies_of(nest), self.volume) for nest in form.nests]
        return None if tuple(nests) == form.nests else form.with_nests(nests)


def _vectorized(nest: Nest, bodies: Sequence[StatementInstance], volume: bool) -> Nest:
    if not nest.loops or any(loop.kind != "serial" for loop in nest.loops):
        return nest
    best = max(reversed(nest.loops), key=lambda loop: score(loop, bodies, nest.loops if volume else ()))
    others = (loop for loop in nest.loops if loop is not best)
    return Nest((*others, replace(best, kind="vector")), nest.body)


def score(loop: Loop, bodies: Sequence[StatementInstance], loops: Sequence[Loop] = ()) -> float:
    """Accesses of unit stride; writes weigh double, except those of reductions, which happen seldom. ``loops``: those
    by whose iterations each access counts."""
    p = loop.param
    points = sum(_unit(r, p) * _elements(r, loops) for body in bodies for r in body.reads.values())
    writes = [r for body in bodies for r in body.writes.values() if r.step(p) is not None]
    points += sum((0.25 if r.wcr else 2) * _unit(r, p) * _elements(r, loops) for r in writes)
    return points / 4 if isinstance(loop.extent, int) and loop.extent < 4 else points


def _elements(reference: Reference, loops: Sequence[Loop]) -> int:
    """How many it touches, with sizes that are not known taken as large."""
    extents = (loop.extent for loop in loops if reference.step(loop.param) not in (0, None))
    return prod(n if isinstance(n, int) else _LARGE for n in extents)


def _unit(reference: Reference, p: Param) -> float:
    """Elements side by side count whole, one for all iterations half; what an index decides lies anywhere."""
    step = reference.step(p)
    if step == 1:
        return 1.0
    return 0.5 if step == 0 or (step is None and not reference.whole) else 0.0
