"""Rotary positions in domain ``daceopt``: pairs of features are turned by an angle each (Su et al., RoFormer, 2021).

``Rotary(x, cos, sin)``: y = x * cos + turned(x) * sin, where ``turned`` makes (-b, a) of each pair (a, b). A pair is
element k of either half of the last axis or, with ``interleaved``, two neighbours. ``cos`` and ``sin`` broadcast to x
and have all of its last axis. y has the shape and type of x.
"""

from __future__ import annotations

from typing import Any

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, Shape
from daceopt.ops.core.registry import FLOATS, Names, Operator, lowering, supports

DOMAIN, NAME = "daceopt", "Rotary"


@lowering(NAME, domain=DOMAIN, types=FLOATS)
def rotary(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """One map over pairs, which reads x at both of their elements."""
    x, cos, sin = all_required(inputs, 3)
    shape = b.graph.shape(x)
    halves, pair = _halves(shape, bool(node.attribute("interleaved", 0)))
    arrays = {c: b.reshape(n, (*b.graph.shape(n)[:-1], *halves)) for c, n in zip("xcs", (x, cos, sin))}
    reads: dict[str, tuple[str, IndexFunction]] = {c: (n, _broadcast(b.graph.shape(n))) for c, n in arrays.items()}
    reads["t"] = (arrays["x"], lambda *i: tuple(1 - p if k == len(i) + pair else p for k, p in enumerate(i)))
    y = b.graph.add_array("rotary", (*shape[:-1], *halves), b.graph.dtype(x))

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, c: sympy.Expr, s: sympy.Expr, t: sympy.Expr) -> sympy.Expr:
        return x * c + scalar.select(scalar.eq(i[pair], 0), -t, t) * s

    b.map(b.graph.shape(y), reads, {"out": (y, lambda *i: i)}, element, label="rotary")
    b.reshape(y, shape, out=require(outputs, 0))


def _halves(shape: Shape, interleaved: bool) -> tuple[tuple[Dim, Dim], int]:
    """The last axis as two, and which of them (from the end) goes through a pair."""
    half = shape[-1] // 2
    return ((half, 2), -1) if interleaved else ((2, half), -2)


def _broadcast(own: Shape) -> Any:
    return lambda *i: tuple(0 if n == 1 else p for n, p in zip(own, i[len(i) - len(own) :]))


@supports(NAME, domain=DOMAIN)
def why_not_rotary(graph: Graph, node: Operator) -> str | None:
    """The features are pairs, and each has an angle."""
    x, cos, sin = (graph.shape(n) for n in graph.operands(node, 3))
    if not x or not isinstance(x[-1], int) or x[-1] % 2 or x[-1] == 0:
        return f"features of shape {x}; expected an even number of them along the last axis, known when compiling"
    for angles in (cos, sin):
        missing = (1,) * (len(x) - len(angles))
        fits = len(angles) <= len(x) and all(n in (1, m) for n, m in zip((*missing, *angles), x, strict=True))
        if not angles or angles[-1] != x[-1] or not fits:
            return (
                f"angles of shape {angles} for features of shape {x}; expected one that broadcasts, with all features"
            )
    return None
