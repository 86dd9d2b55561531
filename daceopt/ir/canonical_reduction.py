"""The canonical forms of reductions: one loop over all that is kept, one over all that is reduced, or only the latter.

PANAMERA's three forms (Zhao et al., 2022), by which APOLLO (MLSys 2022, sections 4.1 and 4.2) fuses and stitches
reductions: two kernels of one form, with loops of equal extents, have loops that match. ``all``: a single loop, which
is reduced; ``x``: the outer loop of two is reduced, along the inner one results lie side by side; ``y``: the inner loop
is reduced.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

from daceopt.errors import IllegalSchedule
from daceopt.ir import schedule
from daceopt.ir import schedule_edits as edits
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Kernel, Stage
from daceopt.ir.references import resolve
from daceopt.ir.schedule import Do, Loop, Param, Tree
from daceopt.ir.symbols import Parameter

FORMS = ("all", "x", "y")
KEPT, REDUCED = Parameter("x"), Parameter("y")  # the names of the loops, as in the paper


def form_of(graph: Graph, kernel: Kernel, statement: int) -> str | None:
    """The canonical form of a statement: one of ``FORMS``; None where it reduces nothing.

    What is reduced goes inside (``y``) where elements lie side by side along it, or along none of the loops kept.
    """
    stage = kernel.stages[statement]
    gone = _gone(kernel, stage)
    if not gone:
        return None
    kept = [p for p in stage.params if p not in gone and kernel.extents[p] != 1]
    if not kept:
        return "all"
    params = frozenset(kernel.extents)
    reads = [resolve(graph, kernel, a, params) for a in stage.reads.values()]
    along = [p for r in reads for p, step in r.steps if step == 1]
    return "x" if any(p in kept for p in along) and not any(p in gone for p in along) else "y"


def _gone(kernel: Kernel, stage: Stage) -> list[Param]:
    """The parameters that all reductions of a statement reduce over; loops of one iteration reduce nothing."""
    reduced = [set(stage.reduced(c)) for c, a in stage.writes.items() if a.wcr]
    common = set.intersection(*reduced) if reduced else set()
    return [p for p in stage.params if p in common and kernel.extents[p] != 1]


def canonical_form(graph: Graph, kernel: Kernel, tree: Tree) -> Tree:
    """``tree`` with the loops around each reduction in canonical form, and so the nests around other statements that
    walk the same loops.

    before:  for i < m: for j < n: for k < p: for l < q: s0(i, j, k, l)       (reduced over j and l)
    after:   for x < m*p: for y < n*q: s0(x // p, y // q, x % p, y % q)

    Loops that are no such nest, because other loops or locals stand between, are left as they are. Whether the result
    is legal decides ``commit``.
    """
    for do in schedule.dos(tree):
        form = form_of(graph, kernel, do.statement)
        if form is not None:
            reduced = _loops_of(do, kernel, _gone(kernel, kernel.stages[do.statement]))
            tree = coalesced(tree, reduced, form)
    return tree


def _loops_of(do: Do, kernel: Kernel, params: Several[Param]) -> list[Any]:
    """The loops that are the values of these parameters; none where one is anything else."""
    index = dict(zip(kernel.stages[do.statement].params, do.index))
    found = [index[p] for p in params]
    return found if all(isinstance(e, Parameter) for e in found) else []


def coalesced(tree: Tree, reduced: Several[Param], form: str) -> Tree:
    """Every nest that has loops over all of ``reduced`` as one or two loops, of which ``form`` says the order.

    before:  for i: for j: for k: f(i, j, k)                                 (reduced: j)
    after:   for x < m*p: for y < n: f(x // p, y, x % p)                     (form y)

    Raises IllegalSchedule for a form that is none.
    """
    if form not in FORMS:
        raise IllegalSchedule(f"a reduction of the form {form!r}; expected one of {', '.join(FORMS)}")
    loops, body = schedule.chain(tree)
    names = {loop.param for loop in loops}
    plain = all(loop.kind == "serial" and loop.rest is None for loop in loops)
    if reduced and plain and names >= set(reduced):
        gone = [loop for loop in loops if loop.param in reduced]
        kept = [loop for loop in loops if loop.param not in reduced]
        return _nest(kept, gone, body, form)
    return schedule.with_children(tree, [coalesced(c, reduced, form) for c in schedule.children(tree)])


def _nest(kept: list[Loop], gone: list[Loop], body: Tree, form: str) -> Tree:
    """One loop over ``kept`` and one over ``gone``, around ``body``."""
    (outer, kept_values), (inner, gone_values) = _one(kept, KEPT), _one(gone, REDUCED)
    body = schedule.substituted(body, {**kept_values, **gone_values})
    order = [inner, outer] if form == "x" else [outer, inner]
    return schedule.nested([loop for loop in order if loop is not None], body)


def _one(loops: list[Loop], name: Param) -> tuple[Loop | None, dict[Any, Any]]:
    """One loop that walks all of ``loops``, and what stands for their parameters."""
    if not loops:
        return None, {}
    whole, values = replace(loops[0], param=name), {loops[0].param: name}
    for k, loop in enumerate(loops[1:]):
        inner = replace(loop, param=Parameter(f"{name}_{k}"))
        merged, mapping = edits.merged_loop(whole, inner)
        final = {merged.param: name}
        step = {old: _renamed(e, final) for old, e in mapping.items()}
        values = {old: schedule.in_terms_of(e, {name: step[whole.param]}) for old, e in values.items()}
        values[loop.param] = step[inner.param]
        whole = replace(merged, param=name)
    return whole, values


def _renamed(expr: Any, mapping: dict[Any, Any]) -> Any:
    return expr.xreplace(mapping)
