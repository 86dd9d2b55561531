"""Comparisons, logic, and the same on bits."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ops.core import algorithm
from daceopt.ops.core.registry import (
    ANY,
    BOOL,
    INTEGERS,
    NUMBERS,
    Names,
    Operator,
    elementwise,
    lowering,
    supports,
    without_gradient,
)
from daceopt.ops.families.elementwise import alias

elementwise("Equal", scalar.eq, types=NUMBERS + BOOL)
elementwise("Less", scalar.lt, types=NUMBERS)
elementwise("LessOrEqual", scalar.le, types=NUMBERS)
elementwise("Greater", scalar.gt, types=NUMBERS)
elementwise("GreaterOrEqual", scalar.ge, types=NUMBERS)
elementwise("And", scalar.logical_and, types=BOOL)
elementwise("Or", scalar.logical_or, types=BOOL)
elementwise("Xor", scalar.logical_xor, types=BOOL)
elementwise("Not", scalar.logical_not, types=BOOL)
elementwise("BitwiseAnd", scalar.bit_and, types=INTEGERS)
elementwise("BitwiseOr", scalar.bit_or, types=INTEGERS)
elementwise("BitwiseXor", scalar.bit_xor, types=INTEGERS)
elementwise("BitwiseNot", scalar.bit_not, types=INTEGERS)


@lowering("BitShift", types=INTEGERS)
def bit_shift(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Arithmetic to the right; a shift by the width or more, or by less than 0, leaves copies of the sign or 0."""
    shift = scalar.shift_left if node.attribute("direction") == "LEFT" else scalar.shift_right
    b.elementwise(shift, *all_required(inputs), out=outputs[0], label="bit_shift")


@lowering("BitCast", types=ANY)
def bit_cast(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The same bytes as another type."""
    x, out = require(inputs, 0), require(outputs, 0)
    if b.graph.dtype(x) == b.graph.dtype(out):
        return alias(b, x, out)
    algorithm.call(b, "bitcast", [x], [out], [b.graph.size(x)], bits=True)
    return None


@supports("BitCast")
def why_not_bit_cast(graph: Graph, node: Operator) -> str | None:
    own = graph.dtype(graph.operand(node, 0))
    target = graph.dtype(graph.result(node, 0))
    if own == target or _width(own) == _width(target) >= 8:
        return None
    return f"{types.name_of(own)} to {types.name_of(target)}; expected types of the same whole number of bytes"


def _width(dtype: types.DType) -> int:
    """Bits of a value, which are fewer than those of its storage for the narrowest types."""
    digits = re.search(r"\d+", types.name_of(dtype))
    return int(digits.group()) if digits else 8 * types.itemsize(dtype)


@algorithm.reference("bitcast")
def _bitcast(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    """A float64 that stands for a float32 is narrowed before it is looked at."""
    x, out = inputs[0], outputs[0]
    width = min(x.dtype.itemsize, out.dtype.itemsize)
    source, target = (d if d.itemsize == width else np.dtype(f"f{width}") for d in (x.dtype, out.dtype))
    out[...] = x.astype(source).view(target)


without_gradient("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "BitCast")
