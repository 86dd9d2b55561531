"""Products and convolutions of 8-bit integers, whose sums are exact and scaled once.

Both nodes compute, for sums ``t`` of products of ``X`` with ``W``, their zero points subtracted, ``y = t * S + B`` with
a number of each per channel. A result of float32 is that; one of 8 bits is ``clamp(round(y), low, high) + zero_y``,
rounded to the nearest, ties to even.
"""

from __future__ import annotations

from typing import ClassVar

import dace
import dace.library
import sympy
from dace.properties import Property

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.library import ConvolutionBase, DenseNode

BYTES = (dace.int8, dace.uint8)
LIMITS = {dace.int8: (-128, 127), dace.uint8: (0, 255)}


def _whole(description: str, default: int = 0) -> Property:
    return Property(dtype=int, default=default, desc=description)


def _zero_x() -> Property:
    return _whole("What stands for 0 in X, padding too")


def _zero_y() -> Property:
    return _whole("What stands for 0 in Y; 0 where that is float32")


def _low() -> Property:
    return _whole("The least result before the zero point is added", -255)


def _high() -> Property:
    return _whole("The largest one", 255)


def bounds(node: Node, dtype: dace.typeclass) -> tuple[int, int]:
    """The least and the largest of results of ``dtype``, their zero point subtracted; those that it does not hold
    are the nearest that it does."""
    low, high = (end - node.zero_y for end in LIMITS[dtype])
    return min(max(node.low, low), high), min(max(node.high, low), high)


def clamps(node: Node, dtype: dace.typeclass) -> bool:
    """Are results clamped more closely than their type does?"""
    low, high = LIMITS[dtype]
    return bounds(node, dtype) != (low - node.zero_y, high - node.zero_y)


@dace.library.node
class QuantizedConvolution(ConvolutionBase):
    """A convolution of 8-bit integers. X: [N, C, d...], int8 or uint8; W: [O, C/group, k...], int8; S and B: [O],
    float64; Y: [N, O, e...], int8, uint8 or float32. Strides are the physical layout, channels first or last."""

    required, optional, results = ("X", "W", "S"), ("B",), ("Y",)
    has_factors: ClassVar[bool] = False
    zero_x, zero_y, low, high = _zero_x(), _zero_y(), _low(), _high()


@dace.library.node
class QuantizedProduct(DenseNode):
    """A product of 8-bit integers. X: [..., M, K], int8 or uint8; W: [K, N], int8, or as X: [..., K, N], of which
    ``zero_w`` stands for 0; S and B: [N] or [1], float64; Y: [..., M, N], int8, uint8 or float32. All are
    contiguous."""

    required, optional, results = ("X", "W", "S"), ("B",), ("Y",)
    wants_rows = True
    zero_w = _whole("What stands for 0 in W")
    zero_x, zero_y, low, high = _zero_x(), _zero_y(), _low(), _high()

    def flops(self, graph: Graph) -> sympy.Expr:
        """Two per element of the result and of the contracted dimension."""
        names = self.operands(graph)
        return 2 * sympy.Mul(*graph.shape(names["Y"]), graph.shape(names["X"])[-1])
