"""Proofs about sizes by parametric integer sets (Feautrier 1988; Verdoolaege, isl, ICMS 2010)."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import islpy as isl
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.scalar.affine_isl import CONTEXT, Functions, SizeParameters, functions_on, with_facts, within
from daceopt.ir.scalar.dims import Dim

Loops = tuple[tuple[sympy.Symbol, Dim], ...]


def is_natural(expr: sympy.Expr, facts: tuple[sympy.Expr, ...], loops: Loops) -> bool:
    """Is ``expr`` 0 or more in all iterations of ``loops``, for all sizes for which ``facts`` are?

    False where isl cannot say so: products of sizes are sizes of their own for it, and other functions nothing.
    """
    sizes, of, points = _known_set(facts, loops) if facts or loops else _space(())
    try:
        holds = of.of(expr).nonneg_set()
    except Unsupported:
        return False
    for space in (points.get_space(), holds.get_space()):
        points = points.intersect_params(sizes.possible(space))
    return bool(points.is_subset(holds))


@lru_cache(1 << 8)
def _known_set(facts: tuple[sympy.Expr, ...], loops: Loops) -> tuple[SizeParameters, Functions, isl.Set]:
    sizes, of, points = _space(loops)
    for p, extent in loops:
        for bound in sympy.Min.make_args(sympy.sympify(extent)):
            with suppress(Unsupported):  # what is not said makes more points
                points = within(points, of, of.of(p), [bound])
    return sizes, of, with_facts(points, of, facts)


def _space(loops: Loops) -> tuple[SizeParameters, Functions, isl.Set]:
    sizes, space = SizeParameters(frozenset(p for p, _ in loops)), isl.Space.set_alloc(CONTEXT, 0, len(loops))
    of, _ = functions_on(sizes, space, [p for p, _ in loops])
    return sizes, of, space.universe_set()
