"""Independent kernels side by side: one loop over the blocks of all of them, which threads share.

``Kernel`` and schedule alone say what runs: each branch is cut into blocks along a loop whose iterations do not depend
on each other, and the blocks of all branches stand behind guards in one parallel loop. No names of operators, any
classes of kernels, any domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.access.iteration import rename
from daceopt.ir.data.provenance import fused_label
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.scalar.dims import Dim, dim, hint
from daceopt.ir.scalar.symbols import Parameter, param
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.conditions import relation
from daceopt.ir.schedule.schedule import Do, Guard, Loop, Tree, bare, substituted, transformed

BLOCK = Parameter("t")  # of the loop over all blocks
_LINE = 16  # elements of float32 in a cache line, of which two threads write none together


@dataclass(frozen=True)
class Branch:
    """A kernel whose schedule is ``count`` blocks in any order: ``body`` is the one that ``BLOCK`` says."""

    kernel: Kernel
    count: Dim
    body: Tree


def serial(tree: Tree) -> Tree:
    """The schedule by one thread."""

    def change(node: Tree) -> Tree:
        if isinstance(node, Loop) and node.kind.startswith("parallel"):
            return replace(node, kind="vector" if node.kind == "parallel vector" else "serial", when=None)
        return node

    return transformed(bare(tree), change)


def cut(kernel: Kernel, pieces: int) -> Branch:
    """About ``pieces`` blocks along the outermost loop of the kernel's schedule, as far as that lets them: one, where
    its iterations are reduced together or stand inside of memory that they share.

    Raises Unsupported for a kernel that carries values along a loop, or whose tiles may be partial.
    """
    tree = serial(schedule.schedule_of(kernel))
    used = {p for s in kernel.stages for p in s.params}
    whole = replace(expand_locals(replace(kernel, outer=tuple(p for p in kernel.outer if p in used))), outer=())
    if not isinstance(tree, Loop) or pieces <= 1 or tree.extent == 1 or not _is_free(kernel, tree):
        return Branch(whole, 1, tree)
    size = _block_size(tree, pieces)
    if size == 1:
        return Branch(whole, tree.extent, substituted(tree.body, {tree.param: BLOCK}))
    outer, inner, mapping = split_loop(tree, size, "part")
    mapping = {p: e.xreplace({outer.param: BLOCK}) for p, e in mapping.items()}
    rest = None if inner.rest is None else dim(inner.rest.xreplace({outer.param: BLOCK}))  # type: ignore[union-attr]
    return Branch(whole, outer.extent, replace(inner, rest=rest, body=substituted(tree.body, mapping)))


def _is_free(kernel: Kernel, loop: Loop) -> bool:
    """May the iterations of the outermost loop run in any order, and is it one that blocks can be cut from?"""
    if loop.rest is not None:
        return False
    for node, around in schedule.walk(loop):
        if isinstance(node, Do):
            stage = kernel.stages[node.statement]
            if any(loop in schedule.reduced_loops(stage, c, node, around) for c in stage.writes):
                return False
    return True


def _block_size(loop: Loop, pieces: int) -> int:
    """Iterations of a block: sizes that are open get blocks of the size that was measured well for long loops."""
    size = max(1, -(-hint(loop.extent) // pieces))
    return size if loop.kind != "vector" else -(-size // _LINE) * _LINE


def side_by_side(graph: Graph, branches: Sequence[Branch], when: Any = None) -> Kernel:
    """One kernel of all branches, in this order, which the caller knows to be independent; ``when`` as of ``Loop``.

    before:  for i < 100: a[i] = f(x[i])          for i < 7: for j < 8: b[i] += y[i, j]
    after:   parallel for t < 4 + 7: { if t < 4: for i < 25: a[25*t + i] = ...
                                       if 4 <= t: for j < 8: b[t - 4] += y[t - 4, j] }

    Raises IllegalSchedule or Unsupported where the whole is not what the branches were.
    """
    label = reduce(fused_label, (branch.kernel.label for branch in branches))
    whole, guards, first = Kernel(label, {}, ()), [], sympy.S.Zero
    for branch in branches:
        kernel, body = _apart(branch, len(whole.extents))
        last = first + branch.count
        body = substituted(_renumber(body, len(whole.stages)), {BLOCK: BLOCK - first})
        guards.append(Guard(_between(first, last), body))
        stages, extents = (*whole.stages, *kernel.stages), {**whole.extents, **kernel.extents}
        whole = Kernel(label, extents, stages, (), {**whole.locals, **kernel.locals})
        first = sympy.expand(last)
    tree = schedule.accumulated(Loop(BLOCK, dim(first), schedule.sequence(guards), "parallel", when=when), whole)
    check(graph, whole, tree)
    return replace(whole, schedule=tree)


def _between(first: Any, last: Any) -> tuple[Any, ...]:
    if last - first == 1:
        return (relation(BLOCK, "==", first),)
    return (*([relation(BLOCK, ">=", first)] if first != 0 else []), relation(BLOCK, "<", last))


def _renumber(tree: Tree, by: int) -> Tree:
    return transformed(tree, lambda n: replace(n, statement=n.statement + by) if isinstance(n, Do) else n)


def _apart(branch: Branch, first: int) -> tuple[Kernel, Tree]:
    """The branch with parameters from ``first`` on; tiles are called after the parameter that they are of."""
    kernel = branch.kernel
    names: dict[Any, Any] = {p: param(first + k) for k, p in enumerate(kernel.extents)}
    for loop in schedule.loops(branch.body):
        base = next((p for p in kernel.extents if str(loop.param).startswith(f"{p}_")), None)
        if loop.param in names or loop.param == BLOCK:
            continue
        if base is None:
            raise Unsupported(f"{kernel.label}: a loop over {loop.param}, which is no tile of a parameter")
        names[loop.param] = Parameter(f"{names[base]}{str(loop.param)[len(str(base)) :]}")

    def change(node: Tree) -> Tree:
        return replace(node, param=names.get(node.param, node.param)) if isinstance(node, Loop) else node

    via = {p: Parameter(f"i_v{k}") for k, p in enumerate(names)}  # all at once
    back = {via[p]: q for p, q in names.items()}
    renamed = rename(rename(kernel, {p: via[p] for p in kernel.extents}), {via[p]: names[p] for p in kernel.extents})
    return renamed, transformed(substituted(substituted(branch.body, via), back), change)
