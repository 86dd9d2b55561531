"""Independent kernels side by side: one loop over the blocks of all of them, which threads share.

``Kernel`` and schedule alone say what runs: each kernel is cut into blocks along a loop whose iterations do not depend
on each other, and the blocks of all of them are behind guards in one parallel loop. No names of operators, any
classes of kernels, any domains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.access.iteration import canonical
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.fusion.joining import join
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.scalar.dims import hint
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Do, Loop, Param, Tree, map_tree, substitute, without_accumulators

_LINE = 16  # elements of float32 in a cache line, of which two threads write none together


def serial(tree: Tree) -> Tree:
    """The schedule by one thread."""

    def change(node: Tree) -> Tree:
        if isinstance(node, Loop) and node.kind.startswith("parallel"):
            return replace(node, kind="vector" if node.kind == "parallel vector" else "serial", when=None)
        return node

    return map_tree(without_accumulators(tree), change)


def cut(kernel: Kernel, pieces: int) -> Loop:
    """The schedule of the kernel as a loop over about ``pieces`` blocks, in any order, of its outermost loop, as far as
    that lets them: one, where its iterations are reduced together or are inside of memory that they share."""
    tree = serial(schedule.schedule_of(kernel))
    if not isinstance(tree, Loop) or pieces <= 1 or tree.extent == 1 or not _is_free(kernel, tree):
        return Loop(Parameter("whole"), 1, tree)
    size = _block_size(tree, pieces)
    blocks = tree if size == 1 else edits.split(tree, tree.param, size, "part")
    assert isinstance(blocks, Loop)
    return blocks


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


def side_by_side(
    graph: Graph, kernels: Sequence[Kernel], blocks: Sequence[Loop], when: sympy.Basic | None = None
) -> Kernel:
    """One kernel of all, in this order, which the caller knows to be independent; ``blocks``: the loop over those of
    each (:func:`cut`); ``when`` as of ``Loop``.

    before:  for i < 100: a[i] = f(x[i])          for i < 7: for j < 8: b[i] += y[i, j]
    after:   parallel for t < 4 + 7: { if t < 4: for i < 25: a[25*t + i] = ...
                                       if 4 <= t: for j < 8: b[t - 4] += y[t - 4, j] }

    Raises IllegalSchedule or Unsupported where the whole is not what the kernels were.
    """
    whole = canonical(join(graph, kernels, lambda _: True))
    loop = edits.side_by_side([*_apart(whole, kernels, blocks)], "t")
    tree = schedule.add_accumulators(replace(loop, kind="parallel", when=when), whole)
    check(graph, whole, tree)
    return replace(whole, schedule=tree)


def _apart(whole: Kernel, kernels: Sequence[Kernel], trees: Sequence[Tree]) -> Iterator[Tree]:
    """Each tree over the statements and parameters that its kernel has in ``whole``; tiles are called after the
    parameter that they are of."""
    free_params, first = iter(whole.extents), 0
    for kernel, tree in zip(kernels, trees):
        own = dict.fromkeys(p for stage in kernel.stages for p in stage.params)
        names: dict[Param, Param] = dict(zip(own, islice(free_params, len(own))))
        names |= {loop.param: _tile(loop.param, names, kernel) for loop in schedule.loops(tree)[1:]}
        yield _over(substitute(tree, names), names, first)
        first += len(kernel.stages)


def _tile(p: Param, names: dict[Param, Param], kernel: Kernel) -> Param:
    if p in names:
        return names[p]
    base = next((q for q in names if str(p).startswith(f"{q}_")), None)
    if base is None:
        raise Unsupported(f"{kernel.label}: a loop over {p}, which is no tile of a parameter")
    return Parameter(f"{names[base]}{str(p)[len(str(base)) :]}")


def _over(tree: Tree, names: dict[Param, Param], first: int) -> Tree:
    def change(node: Tree) -> Tree:
        if isinstance(node, Do):
            return replace(node, statement=node.statement + first)
        return replace(node, param=names.get(node.param, node.param)) if isinstance(node, Loop) else node

    return map_tree(tree, change)
