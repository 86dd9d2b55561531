"""The gradient of batched matrix products: two products with transposed operands."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from daceopt.autodiff.activation import before_activation
from daceopt.autodiff.rules import Contributions, Grads, adjoint
from daceopt.ir.affine import same
from daceopt.ir.broadcasting import sum_to
from daceopt.ir.builder import Builder, reshaped_strides
from daceopt.ir.dims import assumed
from daceopt.ir.graph import Dim, Shape, dim, row_major
from daceopt.ir.nodes.library import Contraction


@adjoint(Contraction)
def contraction_adjoint(b: Builder, node: Contraction, grads: Grads, wanted: Collection[str]) -> Contributions:
    """dA = alpha dY B^T, dB = alpha A^T dY, dBias = dY summed to its shape, dC = dY."""
    names = node.operands(b.graph)
    g = before_activation(b, node.activation, names["Y"], grads[names["Y"]])
    left, right = names["A"], names["B"]
    factor = g if b.graph.dtype(g) == b.graph.dtype(left) else b.cast(g, b.graph.dtype(left))
    found: Contributions = []
    if left in wanted:
        product = b.matmul(factor, _transposed(b, right), alpha=node.alpha)
        found.append((left, _unbroadcast(b, product, b.graph.shape(left))))
    if right in wanted:
        found.append((right, _right_gradient(b, left, factor, right, node.alpha)))
    if names.get("Bias") in wanted:
        found.append((names["Bias"], _unbroadcast(b, g, b.graph.shape(names["Bias"]))))
    if names.get("C") in wanted:
        found.append((names["C"], g))
    return found


def _unbroadcast(b: Builder, g: str, shape: Shape) -> str:
    return sum_to(b, None, g, shape=shape, label="sum_gradient")


def _transposed(b: Builder, x: str) -> str:
    rank = len(b.graph.shape(x))
    return b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _right_gradient(b: Builder, left: str, g: str, right: str, alpha: float) -> str:
    """A^T dY; where all batches share B, the batch joins the contracted dimension: one large product instead of many
    and a sum.
    """
    shape = b.graph.shape(right)
    if all(same(n, 1) for n in shape[:-2]) and _folding_pays(b, left, g):
        rows_left, rows_g = (b.reshape(x, _folded(b.graph.shape(x))) for x in (left, g))
        product = b.matmul(b.transpose(rows_left, [1, 0]), rows_g, alpha=alpha)
        return product if len(shape) == 2 else b.reshape(product, shape)
    return _unbroadcast(b, b.matmul(_transposed(b, left), g, alpha=alpha), shape)


def _folding_pays(b: Builder, left: str, g: str) -> bool:
    """Have both the same rows, and are copies of those that no view folds less than a product for each batch?"""
    shapes = [b.graph.shape(x) for x in (left, g)]
    if not same(_folded(shapes[0])[0], _folded(shapes[1])[0]):
        return False
    copied = sum(assumed(_product(s)) for x, s in zip((left, g), shapes) if not _folds(b, x))
    products = _product((*shapes[1][:-2], shapes[0][-1], shapes[1][-1]))
    return copied <= assumed(products)


def _folds(b: Builder, x: str) -> bool:
    shape, strides = b.graph.shape(x), b.graph.strides(x)
    return strides == row_major(shape) or reshaped_strides(shape, strides, _folded(shape)) is not None


def _folded(shape: Shape) -> Shape:
    """All dimensions but the last as one."""
    return _product(shape[:-1]), shape[-1]


def _product(extents: Shape) -> Dim:
    return dim(prod(extents))
