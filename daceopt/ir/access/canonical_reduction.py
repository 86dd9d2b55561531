"""Schedules of reductions in canonical form (``ir/access/reduction_form.py``): loops interchanged and merged.

Two kernels of one form, with loops of equal extents, have loops that match: what APOLLO (Zhao et al., MLSys 2022,
sections 4.1 and 4.2) fuses and stitches, and what a band that isl found for a reduction becomes.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.reduction_form import form_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel, Stage
from daceopt.ir.scalar.digits import digit
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Do, Loop, Param, Tree

KINDS = ("all-reduce", "x-reduce", "y-reduce")
KEPT, REDUCED = Parameter("x"), Parameter("y")  # the names of the loops, as in the paper


def canonical_form(graph: Graph, kernel: Kernel, tree: Tree) -> Tree:
    """``tree`` with the loops around each reduction in canonical form, and so the nests around other statements that
    walk the same loops.

    before:  for i < m: for j < n: for k < p: for l < q: s0(i, j, k, l)       (reduced over j and l)
    after:   for x < m*p: for y < n*q: s0(x // p, y // q, x % p, y % q)

    Loops that are no such nest, because other loops or locals stand between, are left as they are. Whether the result
    is legal decides ``commit``.
    """
    for do in schedule.dos(tree):
        stage = kernel.stages[do.statement]
        for connector in (c for c in stage.writes if stage.reduced(c)):
            gone = [p for p in stage.reduced(connector) if kernel.extents[p] != 1]
            tree = coalesced(tree, _loops_of(do, stage, gone), form_of(graph, kernel, stage, connector).kind)
    return tree


def _loops_of(do: Do, stage: Stage, params: Several[Param]) -> list[Any]:
    """The loops that are the values of these parameters; none where one is anything else."""
    index = dict(zip(stage.params, do.index))
    found = [index[p] for p in params]
    return found if all(isinstance(e, Parameter) for e in found) else []


def coalesced(tree: Tree, reduced: Several[Param], kind: str) -> Tree:
    """Every nest that has loops over all of ``reduced`` as one or two loops, of which ``kind`` says the order.

    before:  for i: for j: for k: f(i, j, k)                                 (reduced: j)
    after:   for x < m*p: for y < n: f(x // p, y, x % p)                     (y-reduce)

    Raises IllegalSchedule for a kind that is none.
    """
    if kind not in KINDS:
        raise IllegalSchedule(f"a reduction of the form {kind!r}; expected one of {', '.join(KINDS)}")
    loops, body = schedule.chain(tree)
    names = {loop.param for loop in loops}
    plain = all(loop.kind == "serial" and loop.rest is None for loop in loops)
    if reduced and plain and names >= set(reduced):
        gone = [loop for loop in loops if loop.param in reduced]
        kept = [loop for loop in loops if loop.param not in reduced]
        return _nest(kept, gone, body, kind)
    return schedule.with_children(tree, [coalesced(c, reduced, kind) for c in schedule.children(tree)])


def _nest(kept: list[Loop], gone: list[Loop], body: Tree, kind: str) -> Tree:
    """One loop over ``kept`` and one over ``gone``, around ``body``."""
    (outer, kept_values), (inner, gone_values) = _one(kept, KEPT), _one(gone, REDUCED)
    body = schedule.substituted(body, {**kept_values, **gone_values})
    order = [inner, outer] if kind == "x-reduce" else [outer, inner]
    return schedule.nested([loop for loop in order if loop is not None], body)


def _one(loops: list[Loop], name: Param) -> tuple[Loop | None, dict[Any, Any]]:
    """One loop that walks all of ``loops``, and what stands for their parameters: its digits."""
    if not loops:
        return None, {}
    values: dict[Any, Any] = {}
    below: Dim = 1
    for k, loop in reversed(list(enumerate(loops))):
        values[loop.param] = digit(name, below, loop.extent if k else None)
        below = dim(below * loop.extent)
    return replace(loops[0], param=name, extent=below), values
