"""MatMul and Gemm as Contraction nodes."""

from __future__ import annotations

import sympy

from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import types
from daceopt.ops.core import values
from daceopt.ops.core.registry import NUMBERS, Names, Operator, lowering


@lowering("MatMul", types=NUMBERS, factors=True)
def matmul(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    first, second, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    if types.is_float(b.graph.dtype(first)):
        b.matmul(first, second, out=out)
    else:
        integer_matmul(b, first, second, out)


def integer_matmul(b: Builder, first: str, second: str, out: str) -> str:
    """Libraries multiply floats only: integers are multiplied and added up in one kernel."""
    rank_a, rank_b = len(b.graph.shape(first)), len(b.graph.shape(second))
    first = b.unsqueeze(first, [0]) if rank_a == 1 else first
    second = b.unsqueeze(second, [1]) if rank_b == 1 else second
    left, right = b.unsqueeze(first, [-1]), b.unsqueeze(second, [-3])
    unit_axes = [-3] * (rank_a == 1) + [-1] * (rank_b == 1)
    if not unit_axes:
        return b.reduce("sum", lambda x, y: x * y, left, right, axes=[-2], out=out)
    product = b.reduce("sum", lambda x, y: x * y, left, right, axes=[-2])
    return b.squeeze(product, [g + 1 if g == -3 else g for g in unit_axes], out=out)


@lowering("Gemm", types=NUMBERS, factors=True)
def gemm(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """alpha A' B' + beta C, where C broadcasts to the result."""
    first, second, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    first = b.transpose(first, [1, 0]) if node.attribute("transA", 0) else first
    second = b.transpose(second, [1, 0]) if node.attribute("transB", 0) else second
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    bias = values.at(inputs, 2) if beta != 0 else None
    if not types.is_float(b.graph.dtype(first)):
        return _integer_gemm(b, first, second, bias, (alpha, beta), out)
    if bias is not None and beta != 1:
        bias = b.elementwise(lambda c: c * sympy.Float(beta), bias, dtype=types.compute_type(b.graph.dtype(bias)))
    reads = {"A": first, "B": second} | ({"Bias": bias} if bias is not None else {})
    b.library(Contraction, reads, {"Y": out}, alpha=alpha)
    return None


def _integer_gemm(
    b: Builder, first: str, second: str, bias: str | None, factors: tuple[float, float], out: str
) -> None:
    product = b.graph.add_array(b.label, b.graph.shape(out), b.graph.dtype(out))
    integer_matmul(b, first, second, product)

    def combine(p: sympy.Expr, *c: sympy.Expr) -> sympy.Expr:
        terms = [f * v for f, v in zip(map(sympy.nsimplify, factors), (p, *c))]
        return sympy.Add(*terms)

    b.elementwise(combine, product, *([bias] if bias else []), out=out)
