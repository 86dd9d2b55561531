"""Schedule kernels whose statements come in tiles: threads around them, micro-kernels and vectors inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daceopt.ir.access.kernel_pattern import pattern, rename_locals
from daceopt.ir.access.references import StatementInstance
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import Edit, after_those_that_are_legal, attempt
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.legality.microkernels import PRODUCT, TRANSPOSITION
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Call, Do, Loop, Param, Tree
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class TileScheduling(KernelStep):
    """Give a kernel with serial loops or tiles of its own the loops that fit: each decision where it is legal.

    before:  for qb: for kb:  { for q: for k: for d: s[q, k] += a[q, d] * b[d, k];  for q: for k: p[q, k] = f(s[q, k]) }
    after:   for qb: for kb: { call product;  for q: vector for k: p[q, k] = f(s[q, k]) }

    Sums of products, and tiles that are turned round, become calls of micro-kernels, neighbouring loops over the same
    elements one loop, and the innermost loops vector loops.
    """

    def edit(self, loops: KernelLoops) -> KernelLoops | None:
        return None if loops.is_scheduled or not loops.kernel.is_tiled else loops.on(_known(loops))


_MOST = 128
_SCHEDULES: dict[Any, Tree] = {}  # by pattern; with the numbers of locals for their names


def _known(loops: KernelLoops) -> Tree:
    """The loops of a kernel, from those of one that is alike but for names: layers of a network are."""
    like = pattern(loops.graph, loops.kernel)
    if like.form not in _SCHEDULES:
        if len(_SCHEDULES) >= _MOST:
            _SCHEDULES.clear()
        _SCHEDULES[like.form] = like.number(_scheduled(loops).tree)
    return rename_locals(_SCHEDULES[like.form], {str(k): name for k, name in enumerate(like.names)})


def _scheduled(loops: KernelLoops) -> KernelLoops:
    for k in range(len(loops.kernel.stages)):
        loops = _called(loops, k)
    return _vectorized(after_those_that_are_legal(loops, (_fuse(p) for p in loops.kernel.extents)))


def _fuse(p: Param) -> Edit:
    return lambda loops: edits.fuse_loops(loops.tree, p)


def _called(loops: KernelLoops, statement: int) -> KernelLoops:
    """A micro-kernel for the innermost loops of a sum of products, or of a copy that turns a tile round."""
    kernel, stage = loops.kernel, loops.kernel.stages[statement]
    is_sum = any(a.wcr == "sum" for a in stage.writes.values()) and len(stage.reads) == 2
    is_copy = len(stage.reads) == len(stage.writes) == len(stage.assignments) == 1
    microkernel, counts = (PRODUCT, (3, 2)) if is_sum else (TRANSPOSITION, (2,))
    params = [p for p in stage.params if p not in (*kernel.outer, *kernel.serial)]
    for count in counts if is_sum or is_copy else ():
        after = attempt(loops, _call(statement, params[-count:], microkernel)) if len(params) >= count else None
        if isinstance(after, KernelLoops):
            return after
    return loops


def _call(statement: int, params: Sequence[Param], microkernel: str) -> Edit:
    return lambda loops: edits.call(loops.tree, statement, params, microkernel)


def _vectorized(loops: KernelLoops) -> KernelLoops:
    """The innermost loops along which what they access lies side by side: all of them, or those that may be."""
    inner = [n for n, around in schedule.walk(loops.tree) if isinstance(n, Loop) and _is_innermost(n, around)]
    even = [loop for loop in inner if loop.param not in loops.kernel.serial and _is_even(loop, loops.bodies)]
    after = attempt(loops, _vectors(even))
    if isinstance(after, KernelLoops):
        return after
    return after_those_that_are_legal(loops, (_vectors([loop]) for loop in even))


def _is_even(loop: Loop, bodies: Mapping[int, StatementInstance]) -> bool:
    references = [r for do in schedule.dos(loop) for r in bodies[do.statement].references()]
    return all(r.step(loop.param) in (None, 0, 1) for r in references)


def _vectors(vectors: Sequence[Loop]) -> Edit:
    def bind(node: Tree) -> Tree:
        return replace(node, kind="vector") if isinstance(node, Loop) and node in vectors else node

    return lambda loops: schedule.transformed(loops.tree, bind)


def _is_innermost(loop: Loop, around: tuple[Tree, ...]) -> bool:
    parts = loop.body.children if isinstance(loop.body, schedule.Sequence) else (loop.body,)
    return all(isinstance(part, Do) for part in parts) and not any(isinstance(n, Call) for n in around)
