"""Hand the tiles of a transposed copy to a micro-kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.legality.microkernels import TRANSPOSITION, is_copy
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Call, Do, Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, at_least

_LEAST = 8  # elements along each side of a tile for which it is worth it


@dataclass(frozen=True)
class TranspositionCall(KernelStep):
    """Let one call do the loops of a tile whose rows have unit stride in one array and whose columns in the other one.

    before:  for i < 32: vector for j < 32: y[i, j] = x[j, i]
    after:   call transposition: for i < 32: for j < 32: y[i, j] = x[j, i]

    The micro-kernel turns blocks of 8 x 8 or 16 x 16 elements round in registers; a vector loop would gather them one
    by one.
    """

    def edit(self, loops: KernelLoops) -> Tree | None:
        if not any(len(s.reads) == len(s.writes) == 1 and len(s.params) > 1 for s in loops.kernel.stages):
            return None
        return schedule.map_tree(loops.tree, partial(_as_call, loops))


def _as_call(loops: KernelLoops, tree: Tree) -> Tree:
    """A tile that is transposed, as a call of the micro-kernel; any other tree as it is."""
    if not (isinstance(tree, Loop) and tree.kind == "serial" and isinstance(tree.body, Loop)):
        return tree
    inner = tree.body
    is_tile = inner.kind in ("serial", "vector") and isinstance(inner.body, Do)
    if not is_tile or not all(at_least(loop.extent, _LEAST) for loop in (tree, inner)):
        return tree
    body = loops.bodies[inner.body.statement]  # type: ignore[union-attr]
    if not is_copy(loops.kernel, body):
        return tree
    (source,), (target,) = body.reads.values(), body.writes.values()
    crossed = {(source.step(a.param), target.step(b.param)) for a, b in ((tree, inner), (inner, tree))}
    if (1, 1) not in crossed or source.buffer.local or target.buffer.local:
        return tree
    return Call(TRANSPOSITION, replace(tree, body=replace(inner, kind="serial")))
