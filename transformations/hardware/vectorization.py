"""Choose the loop that runs in vector registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from daceopt.ir.access.references import Reference, StatementInstance
from daceopt.ir.edits.attempt import Edit, Edited, after_those_that_are_legal, attempt
from daceopt.ir.edits.loops import KernelLoops, Nest, pack
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Call, Do, Loop, Param, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least, reduced_params

_LARGE = 1 << 10
_PAIR = 2
_LEAST_PAIRS = 16


@dataclass(frozen=True)
class Vectorization(KernelStep):
    """Move the loop along which most accesses have unit stride innermost, and make it a vector loop.

    before:  for i < m: for j < n: y[j, i] = f(x[j, i])
    after:   for j < n: vector for i < m: y[j, i] = f(x[j, i])

    Two neighbours, of which each is another function of the same elements (both parts of a complex number), fill no
    register:

    before:  for i < n: for j < 2: y[i, j] = f(j, x[i, 0], x[i, 1])
    after:   vector for i < n: unroll for j < 2: y[i, j] = f(j, x[i, 0], x[i, 1])

    ``volume``: accesses count by how many elements they touch, where caches do not make up for few of them. Kernels
    with serial loops or tiles of their own keep the order of their loops.
    """

    volume: bool = False

    def edit(self, form: KernelLoops) -> Edited:
        if form.kernel.is_tiled:
            return _innermost_vectorized(form)
        common = _common(form)
        before, shared = (form.nests, form.shared) if common is None else ((common,), ())
        nests = tuple(_vectorize(nest, form.bodies_of(nest), self.volume) for nest in before)
        return None if nests == before else form.with_nests(nests, shared)


def _common(form: KernelLoops) -> Nest | None:
    """Statements in one and the same loops are a nest, unless they reduce over these: steps that split sums look for
    loops inside of shared ones."""
    return None if form.common is None or reduced_params(form, form.common) else form.common


def _vectorize(nest: Nest, bodies: Sequence[StatementInstance], volume: bool) -> Nest:
    if not nest.loops or any(loop.kind != "serial" for loop in nest.loops):
        return nest
    paired = None if volume else _pair(nest, bodies)
    if paired is not None:
        return paired
    best = max(reversed(nest.loops), key=lambda loop: score(loop, bodies, nest.loops if volume else ()))
    others = (loop for loop in nest.loops if loop is not best)
    return Nest((*others, replace(best, kind="vector")), nest.body)


def _pair(nest: Nest, bodies: Sequence[StatementInstance]) -> Nest | None:
    """Vectors of pairs, where each pair is written side by side; None where there are none."""
    pair = nest.loops[-1]
    written = [r for body in bodies for r in body.writes.values()]
    if pair.extent != _PAIR or pack(nest) > 1 or any(r.wcr or r.step(pair.param) != 1 for r in written):
        return None
    accesses = [*written, *(r for body in bodies for r in body.reads.values())]
    if all(pair.param in r.params() for r in accesses):  # neighbours that are read side by side, too
        return None
    for loop in reversed(nest.loops[:-1]):
        if at_least(loop.extent, _LEAST_PAIRS) and all(_near(r, loop.param) for r in accesses):
            others = (other for other in nest.loops[:-1] if other is not loop)
            return Nest((*others, replace(loop, kind="vector")), replace(pair, kind="unroll", body=nest.body))
    return None


def _near(reference: Reference, p: Param) -> bool:
    """Whether a lane's element is, at most, one pair behind that of the lane before."""
    return not reference.whole and (reference.step(p) in (1, _PAIR) or p not in reference.params())


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


# ---------------------------------------------------------------- loops that stay where they are


def _innermost_vectorized(loops: KernelLoops) -> Edited:
    """The innermost loops along which what they access lies side by side: all of them, or those that may be."""
    inner = [n for n, around in schedule.walk(loops.tree) if isinstance(n, Loop) and _is_innermost(n, around)]
    even = [loop for loop in inner if loop.param not in loops.kernel.serial and _is_even(loop, loops.bodies)]
    after = attempt(loops, _vectors(even))
    return after if isinstance(after, KernelLoops) else after_those_that_are_legal(loops, (_vectors([n]) for n in even))


def _is_innermost(loop: Loop, around: tuple[Tree, ...]) -> bool:
    plain = all(isinstance(n, (Do, schedule.Sequence)) for n, _ in schedule.walk(loop.body))
    return loop.kind == "serial" and plain and not any(isinstance(n, Call) for n in around)


def _is_even(loop: Loop, bodies: Mapping[int, StatementInstance]) -> bool:
    references = [r for do in schedule.dos(loop) for r in bodies[do.statement].references()]
    return all(r.step(loop.param) in (None, 0, 1) for r in references)


def _vectors(vectors: Sequence[Loop]) -> Edit:
    def bind(node: Tree) -> Tree:
        return replace(node, kind="vector") if isinstance(node, Loop) and node in vectors else node

    return lambda loops: schedule.map_tree(loops.tree, bind)
