"""The gradient of batched matrix products: two products with transposed operands."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import sympy

from daceopt.autodiff.activation import before_activation
from daceopt.autodiff.rules import Contributions, Grads, adjoint
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.broadcasting import sum_to
from daceopt.ir.nodes.builder import Builder, reshaped_strides
from daceopt.ir.nodes.library import Contraction, GroupedProduct
from daceopt.ir.scalar import types
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Shape, dim, hint

_MOST_ORDERS = 24  # of dimensions before the last: four of them


@adjoint(Contraction)
def contraction_adjoint(b: Builder, node: Contraction, grads: Grads, wrt: Collection[str]) -> Contributions:
    """dA = alpha dY B^T, dB = alpha A^T dY, dBias = dY summed to its shape, dC = dY. Of X X^T: alpha (dY + dY^T) X."""
    names = node.operands(b.graph)
    g = before_activation(b, node.activation, names["Y"], grads[names["Y"]])
    left, right = names["A"], names["B"]
    factor = g if b.graph.dtype(g) == b.graph.dtype(left) else b.cast(g, b.graph.dtype(left))
    contributions: Contributions = []
    if left in wrt and right in wrt and _is_gram(b.graph, left, right):
        contributions.append(_gram_gradient(b, left, right, factor, node.alpha))
        wrt = {*wrt} - {left, right}
    if left in wrt:
        product = b.matmul(factor, _transpose(b, right), alpha=node.alpha)
        contributions.append((left, _unbroadcast(b, product, b.graph.shape(left))))
    if right in wrt:
        contributions.append((right, _right_gradient(b, left, factor, right, node.alpha)))
    if names.get("Bias") in wrt:
        contributions.append((names["Bias"], _unbroadcast(b, g, b.graph.shape(names["Bias"]))))
    if names.get("C") in wrt:
        contributions.append((names["C"], g))
    return contributions


@adjoint(GroupedProduct)
def grouped_product_adjoint(b: Builder, node: GroupedProduct, grads: Grads, wrt: Collection[str]) -> Contributions:
    """dA = dY B^T, dB = A^T dY of the rows of each group; of sums over rows: dA = B dY^T, dB = A dY."""
    names = node.operands(b.graph)
    left, right, ends, g = names["A"], names["B"], names["Ends"], grads[names["Y"]]
    contributions: Contributions = []
    if left in wrt:
        first, second = (right, g) if node.inner else (g, right)
        contributions.append((left, b.grouped_product(first, _transpose(b, second), ends)))
    if right in wrt:
        contributions.append((right, _right_gradient_by_group(b, node, left, g, right, ends)))
    return contributions


def _right_gradient_by_group(b: Builder, node: GroupedProduct, left: str, g: str, right: str, ends: str) -> str:
    """In rows or columns, as the operand is in memory."""
    if node.inner:
        return b.grouped_product(left, g, ends)
    if b.graph.strides(right)[-1] == 1:
        return b.grouped_product(left, g, ends, inner=True)
    return _transpose(b, b.grouped_product(g, left, ends, inner=True))


def _is_gram(graph: Graph, left: str, right: str) -> bool:
    """Is B the transpose of A, in the same memory, and dY no larger than A? Then one sum of dY and its transpose takes
    the place of an array like A and of a product. Half types would round that sum."""
    shape, other = graph.shape(left), _exchange_last(graph.shape(right))
    if len(shape) != len(other) or not all(same(n, m) for n, m in zip(shape, other, strict=True)):
        return False
    (buffer, start), (root, begin) = graph.root(left), graph.root(right)
    steps = zip(graph.strides(left), _exchange_last(graph.strides(right)), shape, strict=True)
    is_one = buffer == root and same(start, begin) and all(same(n, 1) or same(s, t) for s, t, n in steps)
    return is_one and not types.is_narrow(graph.dtype(left)) and hint(shape[-2]) <= hint(shape[-1])


def _exchange_last(extents: Shape) -> Shape:
    return (*extents[:-2], extents[-1], extents[-2])


def _gram_gradient(b: Builder, left: str, right: str, g: str, alpha: float) -> tuple[str, str]:
    """What both operands contribute, as one contribution to that which is no view, so that it stands as its array."""
    both = b.elementwise(lambda v, w: v + w, g, _transpose(b, g), label="symmetrised_gradient")
    if b.graph.is_view(left) and not b.graph.is_view(right):
        return right, b.matmul(right, both, alpha=alpha)
    return left, b.matmul(both, left, alpha=alpha)


def _unbroadcast(b: Builder, g: str, shape: Shape) -> str:
    return sum_to(b, None, g, shape=shape, label="sum_gradient")


def _transpose(b: Builder, x: str) -> str:
    rank = len(b.graph.shape(x))
    return b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _right_gradient(b: Builder, left: str, g: str, right: str, alpha: float) -> str:
    """A^T dY; where all batches share B, the batch joins the contracted dimension: one large product instead of many
    and a sum.
    """
    shape = b.graph.shape(right)
    if all(same(n, 1) for n in shape[:-2]):
        rows = _as_rows(b, left, g)
        if rows is not None:
            product = b.matmul(b.transpose(rows[0], [1, 0]), rows[1], alpha=alpha)
            return product if len(shape) == 2 else b.reshape(product, shape)
    return _unbroadcast(b, b.matmul(_transpose(b, left), g, alpha=alpha), shape)


def _as_rows(b: Builder, left: str, g: str) -> tuple[str, str] | None:
    """Both with all dimensions but the last folded, in an order in which that copies neither, or only the smaller; None
    where these dimensions differ, or a product for each batch and their sum move less than the copy.

    In which order the rows are added up is nobody's concern, as long as it is the same for both.
    """
    left, g = _of_one_rank(b, left, g)
    *lead, inner = b.graph.shape(left)
    *others, columns = b.graph.shape(g)
    if len(lead) != len(others) or not all(same(n, m) for n, m in zip(lead, others, strict=True)):
        return None
    orders = list(itertools.islice(itertools.permutations(range(len(lead))), _MOST_ORDERS))
    copied = [hint(sum(b.graph.shape(x)[-1] for x in (left, g) if not _is_foldable(b, x, o))) for o in orders]
    least = min(range(len(orders)), key=copied.__getitem__)
    if copied[least] * hint(lead[-1]) > hint(inner) * hint(columns):
        return None
    operands = [b.transpose(x, [*orders[least], len(lead)]) if least else x for x in (left, g)]
    return _fold(b, operands[0]), _fold(b, operands[1])


def _of_one_rank(b: Builder, left: str, g: str) -> tuple[str, str]:
    """The longer one without the extents of 1 before its others."""
    shapes = {x: b.graph.shape(x) for x in (left, g)}
    rank = min(map(len, shapes.values()))
    short = {x: s if len(s) == rank or not all(same(n, 1) for n in s[:-rank]) else s[-rank:] for x, s in shapes.items()}
    first, second = (x if short[x] == shapes[x] else b.reshape(x, short[x]) for x in (left, g))
    return first, second


def _is_foldable(b: Builder, x: str, order: Sequence[int]) -> bool:
    """Is ``x`` with its dimensions but the last in this order a matrix by strides alone?"""
    shape, strides = ([v[k] for k in (*order, len(order))] for v in (b.graph.shape(x), b.graph.strides(x)))
    return reshaped_strides(tuple(shape), tuple(strides), (dim(sympy.Mul(*shape[:-1])), shape[-1])) is not None


def _fold(b: Builder, x: str) -> str:
    shape = b.graph.shape(x)
    return x if len(shape) == 2 else b.reshape(x, (dim(sympy.Mul(*shape[:-1])), shape[-1]))
