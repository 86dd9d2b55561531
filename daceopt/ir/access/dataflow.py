"""Which elements an access reaches, from its index alone: positions in memory as affine functions of the loops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access
from daceopt.ir.scalar.affine import Affine, affine, same
from daceopt.ir.scalar.dims import Dim, dim


class Walk(NamedTuple):
    """The element ``position`` of an array; ``whole``: the dimensions that are left open; ``terms``: those of the
    parameters along which it moves.

    A parameter along which the array is repeated (stride 0) has a term of factor 0 in ``position``.
    """

    position: Affine
    whole: tuple[int, ...]
    terms: tuple[tuple[sympy.Symbol, Dim], ...]


def walk(index: Sequence[Dim | None], strides: Sequence[Dim], params: Collection[sympy.Symbol] | None = None) -> Walk:
    """How ``index`` (an expression per dimension, None for a whole one) moves through an array of these strides.

    ``params``: see :func:`daceopt.ir.scalar.affine.affine`.
    """
    return _walk(tuple(index), tuple(strides), None if params is None else frozenset(params))


@lru_cache(1 << 14)  # each merge that is tried, and each step that schedules, asks for what kernels access again
def _walk(index: tuple[Dim | None, ...], strides: tuple[Dim, ...], params: frozenset[sympy.Symbol] | None) -> Walk:
    steps: dict[sympy.Symbol, Dim] = {}
    constant: Dim = 0
    opaque: Dim = 0
    whole = []
    for axis, (expr, stride) in enumerate(zip(index, strides, strict=False)):
        if expr is None:
            whole.append(axis)
            continue
        form = affine(expr, params)
        for p, factor in form.terms:
            steps[p] = dim(steps.get(p, 0) + factor * stride)
        constant, opaque = dim(constant + form.constant * stride), dim(opaque + form.opaque * stride)
    moves = tuple((p, step) for p, step in steps.items() if step != 0)
    return Walk(Affine(tuple(steps.items()), constant, opaque), tuple(whole), moves)


@dataclass(frozen=True)
class Address:
    """An affine address function over the root buffer ``buffer``."""

    buffer: str
    constant: Dim
    terms: tuple[tuple[sympy.Symbol, Dim], ...]  # (parameter, elements between neighbours along it), no zeros

    def coefficients(self) -> dict[sympy.Symbol, Dim]:
        return dict(self.terms)


def address(graph: Graph, access: Access) -> Address | None:
    """The address function of ``access``, or None when it is not affine (a run-time index). Views are seen through."""
    place = walk(access.index, graph.strides(access.array))
    if place.whole or not place.position.is_exact:
        return None
    root, start = graph.root(access.array)
    return Address(root, dim(start + place.position.constant), place.terms)


def same_elements(graph: Graph, a: Access, b: Access) -> bool:
    """Do two accesses reach the same position of their buffers in each iteration?"""
    (one, start), (other, begin) = _position(graph, a), _position(graph, b)
    if one.whole or other.whole or one.position.opaque != other.position.opaque:
        return False
    same_start = dim(start + one.position.constant) == dim(begin + other.position.constant)
    return same_start and dict(one.terms) == dict(other.terms)


def _position(graph: Graph, access: Access) -> tuple[Walk, Dim]:
    """How an access moves through its buffer, and where its array starts there."""
    return walk(access.index, graph.strides(access.array)), graph.root(access.array)[1]


def is_bijective(index: Sequence[Dim], shape: Sequence[Dim], extents: Mapping[sympy.Symbol, Dim]) -> bool:
    """Does ``index`` visit every element of ``shape`` exactly once, as its parameters run through ``extents``?"""
    params: set[sympy.Symbol] = set()
    for expr, size in zip(index, shape, strict=True):
        form = affine(expr, extents)
        if not form.is_integral or len(form.terms) > 1:
            return False
        if not form.terms:
            if size != 1:
                return False
            continue
        ((p, factor),) = form.terms
        start = 0 if factor == 1 else dim(size - 1)
        if p in params or abs(factor) != 1 or not same(extents[p], size) or not same(form.constant, start):
            return False
        params.add(p)
    return True
