"""Let the lanes of a warp run neighbouring iterations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.edits.schedule_edits import split_loop
from daceopt.ir.legality.hardware import LANES
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Loop, Tree
from daceopt.transformations.hardware._scheduling import KernelStep, reduced_params, with_shared_locals


@dataclass(frozen=True)
class WarpTiling(KernelStep):
    """Cut a block's loop into warps, or walk a vector loop a warp's width at a time.

    before:  block for j < 256: y[j] = f(x[j])
    after:   block for j_warp < 8: warp for j < 32: y[32*j_warp + j] = f(x[32*j_warp + j])

    before:  block for i < 8: vector for j < n: s[i] += x[i, j]
    after:   block for i < 8: for j_chunk: warp for j < 32, n - 32*j_chunk: s[i] += x[i, 32*j_chunk + j]

    Lanes read memory side by side, and what they reduce is collected across the warp by exchanging registers (Rausch
    et al., DaCeML, section 5.4, WarpTiling): each lane's part starts from the identity, whatever it is added to.
    """

    def edit(self, form: KernelLoops) -> Tree | None:
        if any(loop.kind == "warp" for loop in schedule.loops(form.tree)):
            return None
        if form.shared and form.shared[-1].kind == "block" and not any(_vector(nest) for nest in form.nests):
            return self._of_shared(form)
        nests = [self._tile(form, nest) for nest in form.nests]
        return None if nests == list(form.nests) else with_shared_locals(form.on(form.with_nests(nests)))

    def _of_shared(self, form: KernelLoops) -> Tree:
        """Each lane has a row of its own."""
        warps, lanes, mapping = _cut(form.shared[-1])
        return form.with_shared((*form.shared[:-1], *warps, lanes), mapping)

    def _tile(self, form: KernelLoops, nest: Nest) -> Nest:
        vector = _vector(nest)
        if vector is None:
            at = next((k for k, loop in enumerate(nest.loops) if loop.kind == "block"), None)
            if at is None:
                return nest
            warps, lanes, mapping = _cut(nest.loops[at])
            loops = (*nest.loops[:at], *warps, lanes, *nest.loops[at + 1 :])
            return Nest(loops, schedule.substitute(nest.body, mapping))
        chunks, lane, mapping = _in_chunks(vector)
        *others, _ = nest.loops
        is_parallel = vector.param not in reduced_params(form, nest)
        first = next((k for k, n in enumerate(others) if n.param in reduced_params(form, nest)), len(others))
        at = first if is_parallel and form.single is not None else len(others)
        return Nest((*others[:at], *chunks, *others[at:], lane), schedule.substitute(nest.body, mapping))


def _vector(nest: Nest) -> Loop | None:
    return nest.loops[-1] if nest.loops and nest.loops[-1].kind == "vector" else None


def _cut(block: Loop) -> tuple[list[Loop], Loop, dict[sympy.Symbol, sympy.Expr]]:
    """A loop of a block as loops of its warps and of their lanes."""
    if isinstance(block.extent, int) and block.extent <= LANES:
        return [], replace(block, kind="warp"), {}
    outer, inner, mapping = split_loop(block, LANES, "warp")
    return [replace(outer, kind="block")], replace(inner, kind="warp"), mapping


def _in_chunks(vector: Loop) -> tuple[list[Loop], Loop, dict[sympy.Symbol, sympy.Expr]]:
    if isinstance(vector.extent, int) and vector.extent <= LANES and vector.rest is None:
        return [], replace(vector, kind="warp"), {}
    outer, inner, mapping = split_loop(vector, LANES, "chunk")
    return [outer], replace(inner, kind="warp"), mapping
