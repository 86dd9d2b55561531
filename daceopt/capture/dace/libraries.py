"""Library nodes of DaCe in the builder's words: a rule per class."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import dace

from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import Builder

Operands = Mapping[str, str]
Rule = Callable[[Builder, "dace.sdfg.nodes.LibraryNode", Operands], str]


def compute(b: Builder, node: dace.sdfg.nodes.LibraryNode, operands: Operands) -> str:
    """The result of a library node, of whose operands (connector -> array) just the parts that it reads are given.

    Raises Unsupported for a class without a rule.
    """
    rule = _RULES.get(type(node).__name__)
    if rule is None:
        supported = ", ".join(sorted(_RULES))
        raise Unsupported(
            f"library node {type(node).__name__} {node.label!r} is not known; known are {supported}, Reduce"
        )
    return rule(b, node, operands)


def is_known(node: dace.sdfg.nodes.LibraryNode) -> bool:
    """Is there a rule for it?"""
    return type(node).__name__ in _RULES


def _turn(b: Builder, name: str, turn: bool) -> str:
    rank = len(b.graph.shape(name))
    return b.transpose(name, [*range(rank - 2), rank - 1, rank - 2]) if turn else name


def _scale(b: Builder, node: dace.sdfg.nodes.LibraryNode, product: str, addend: str | None) -> str:
    beta = getattr(node, "beta", 0)
    if addend is None or beta == 0:
        return product
    return str(b.elementwise(lambda y, c: y + beta * c, product, addend, dtype=b.graph.dtype(product)))


def _product(b: Builder, node: dace.sdfg.nodes.LibraryNode, operands: Operands) -> str:
    left = _turn(b, operands["_a"], getattr(node, "transA", False))
    right = _turn(b, operands["_b"], getattr(node, "transB", False))
    if getattr(node, "beta", 0) != 0 and "_cin" not in operands:
        raise Unsupported(
            f"{type(node).__name__} {node.label!r} adds to what stands in its result; expected an operand"
        )
    return _scale(b, node, b.matmul(left, right, alpha=float(getattr(node, "alpha", 1))), operands.get("_cin"))


def _matrix_vector(b: Builder, node: dace.sdfg.nodes.LibraryNode, operands: Operands) -> str:
    matrix = _turn(b, operands["_A"], node.transA)
    return _scale(b, node, b.matmul(matrix, operands["_x"], alpha=float(node.alpha)), operands.get("_y"))


def _dot(b: Builder, node: dace.sdfg.nodes.LibraryNode, operands: Operands) -> str:
    return b.reduce("sum", lambda x, y: x * y, operands["_x"], operands["_y"], axes=(0,))


def _outer(b: Builder, node: dace.sdfg.nodes.LibraryNode, operands: Operands) -> str:
    column, row = b.unsqueeze(operands["_x"], [1]), b.unsqueeze(operands["_y"], [0])
    return str(b.elementwise(lambda a, x, y: a + node.alpha * x * y, operands["_A"], column, row))


def _axpy(b: Builder, node: dace.sdfg.nodes.LibraryNode, operands: Operands) -> str:
    return str(b.elementwise(lambda x, y: node.a * x + y, operands["_x"], operands["_y"]))


def _transpose(b: Builder, node: dace.sdfg.nodes.LibraryNode, operands: Operands) -> str:
    return b.copy(_turn(b, operands["_inp"], True))


_RULES: dict[str, Rule] = {
    "MatMul": _product,
    "Gemm": _product,
    "BatchedMatMul": _product,
    "Gemv": _matrix_vector,
    "Dot": _dot,
    "Ger": _outer,
    "Axpy": _axpy,
    "Transpose": _transpose,
}
