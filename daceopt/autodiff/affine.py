"""What an index says about its parameters: is it affine, does it reach every element once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.ir.graph import Dim, dim


@dataclass(frozen=True)
class Affine:
    """``offset + sum(coefficient * parameter)`` with integer coefficients."""

    coefficients: dict[sympy.Symbol, int]
    offset: Dim


def affine(expr: Any, params: Iterable[sympy.Symbol]) -> Affine | None:
    """The affine form of ``expr`` in ``params``, or None when it has none."""
    expr = sympy.expand(expr)
    coefficients: dict[sympy.Symbol, int] = {}
    for p in params:
        factor = expr.coeff(p)
        if factor == 0:
            continue
        if not factor.is_Integer:
            return None
        coefficients[p] = int(factor)
    rest = sympy.expand(expr - sympy.Add(*(c * p for p, c in coefficients.items())))
    if rest.free_symbols & set(params):
        return None
    return Affine(coefficients, dim(rest))


def same(a: Any, b: Any) -> bool:
    """Are two extents equal for all values of their symbols?"""
    return dim(sympy.expand(sympy.sympify(a) - b)) == 0


def is_bijective(index: Sequence[Any], shape: Sequence[Dim], extents: Mapping[sympy.Symbol, Dim]) -> bool:
    """Does ``index`` visit every element of ``shape`` exactly once, as its parameters run through ``extents``?"""
    seen: set[sympy.Symbol] = set()
    for expr, size in zip(index, shape, strict=True):
        form = affine(expr, extents)
        if form is None or len(form.coefficients) > 1:
            return False
        if not form.coefficients:
            if size != 1:
                return False
            continue
        ((p, factor),) = form.coefficients.items()
        start = 0 if factor == 1 else dim(size - 1)
        if p in seen or abs(factor) != 1 or not same(extents[p], size) or not same(form.offset, start):
            return False
        seen.add(p)
    return True
