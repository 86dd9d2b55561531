"""Attention as one node, and its gradients: for libraries that have it whole, without the scores of all pairs.

Queries, keys, values, their gradients and results are [batch, heads, length, size] or, packed, [batch, length, heads *
size]; all of one element type, float32 or narrow. Heads of keys and values may be fewer than those of queries: each
serves as many of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import dace.library
import sympy
from dace.properties import Property, make_properties

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import DenseNode
from daceopt.ir.scalar.dims import Dim, Shape, dim

_ROWS = 32  # of stored statistics there is a multiple of these, as some kernels have it


@make_properties
class AttentionCall(DenseNode):
    """What both directions share.

    Mask: booleans (which keys are seen), or what is added to the scores; broadcasts to [batch, heads, length, keys].
    Lse: float32 [batch, heads, :func:`pad_rows` of length]: of each row the logarithm of the sum of the exponentials of
    its scores; rows behind the last are infinite. A row that sees no key gives zeros.
    """

    scale = Property(dtype=float, default=1.0, desc="What scores are multiplied by")
    causal = Property(dtype=bool, default=False, desc="A query sees the keys up to its own position")
    heads = Property(dtype=int, default=0, desc="Heads of packed queries; 0: the second of four axes")
    kv_heads = Property(dtype=int, default=0, desc="Heads of packed keys and values")
    computes: ClassVar[bool] = False  # it takes narrow operands as they are

    def apart(self, graph: Graph, connector: str) -> tuple[Shape, Shape]:
        """Shape and strides of an operand with four axes, wherever its heads are."""
        name = self.operands(graph)[connector]
        shape, strides = graph.shape(name), graph.strides(name)
        if len(shape) == 4:
            return shape, strides
        (batch, length, width), (outer, step, inner) = shape, strides
        heads = self.heads if connector in ("Q", "Y", "dY", "dQ") else self.kv_heads
        size = dim(width // heads)
        return (batch, heads, length, size), (outer, dim(size * inner), step, inner)

    def flops(self, graph: Graph) -> sympy.Expr:
        """Of the products: two forward, five backward."""
        (batch, heads, rows, size), _ = self.apart(graph, "Q")
        (_, _, keys, columns), _ = self.apart(graph, "V")
        return self._products(size, columns) * 2 * batch * heads * rows * keys

    def _products(self, size: object, columns: object) -> Any:
        raise NotImplementedError


@dace.library.node
class AttentionForward(AttentionCall):
    """``Y = softmax(scale * Q @ K' + Mask) @ V``."""

    required, optional = ("Q", "K", "V"), ("Mask",)
    results, optional_results = ("Y",), ("Lse",)

    def _products(self, size: Any, columns: Any) -> Any:
        return size + columns


@dace.library.node
class AttentionBackward(AttentionCall):
    """The gradients of attention for queries, keys and values, from what the forward has left."""

    required, optional = ("Q", "K", "V", "Y", "Lse", "dY"), ("Mask",)
    results, optional_results = (), ("dQ", "dK", "dV")

    def _products(self, size: Any, columns: Any) -> Any:
        return 3 * size + 2 * columns


def pad_rows(rows: Dim) -> Dim:
    """How many rows the statistics of so many have."""
    return dim((rows + _ROWS - 1) // _ROWS * _ROWS)
