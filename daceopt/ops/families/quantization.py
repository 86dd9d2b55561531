"""Quantisation: linear maps to integers and to floats of 8 bits and less, and products of quantised operands.

Rounding is to nearest, ties to even, before the zero point is added; results saturate; NaN becomes the lowest integer.
Scales are read as arrays, never as literals: SymPy would turn a division into a product with the reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import ANY, Names, Operator, lowering, supports, without_gradient
from daceopt.ops.families.convolution import why_not_groups, why_not_window

_BYTES = (dace.int8, dace.uint8)
_BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
Read = tuple[str, IndexFunction]


# -------------------------------------------------------------------- scales and zero points


def _axis(graph: Graph, node: Operator, x: str) -> int:
    rank = len(graph.shape(x))
    return int(node.attribute("axis", 1)) % max(rank, 1)


def _parameter(b: Builder, node: Operator, x: str, name: str) -> Read:
    """How a scale or zero point is read at an element of ``x``: one for all, per index of the axis, or per block."""
    shape, own, axis = b.graph.shape(x), b.graph.shape(name), _axis(b.graph, node, x)
    if b.graph.size(name) == 1:
        return b.reshape(name, ()), lambda *i: ()
    if not node.attribute("block_size", 0):
        return name, lambda *i: (i[axis],)
    return _spread(b, name, own, shape, axis, int(node.attribute("block_size"))), lambda *i: i


def _spread(b: Builder, name: str, own: Shape, shape: Shape, axis: int, block: int) -> str:
    """Each element repeated ``block`` times along the axis; the last block may be shorter."""
    out = b.graph.add_array("blocks", shape, b.graph.dtype(name))

    def element(i: tuple[sympy.Symbol, ...], s: sympy.Expr) -> sympy.Expr:
        return scalar.load(s, *i[:axis], scalar.idiv(i[axis], block), *i[axis + 1 :])

    b.map(shape, {"s": (name, lambda *i: (None,) * len(own))}, {"out": (out, lambda *i: i)}, element, label="blocks")
    return out


@supports("QuantizeLinear", "DequantizeLinear")
def why_not_linear(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    x, scale = map(graph.shape, all_required(inputs, 2))
    block, zero = int(node.attribute("block_size", 0)), values.at(inputs, 2)
    if zero is not None and graph.size(zero) != graph.size(require(inputs, 1)):
        return f"a zero point of shape {graph.shape(zero)} with a scale of shape {scale}; expected the same"
    if graph.size(require(inputs, 1)) == 1:
        return None
    axis = _axis(graph, node, require(inputs, 0))
    count = -(-x[axis] // block) if block and x else x[axis] if x else 1
    expected = (*x[:axis], count, *x[axis + 1 :]) if block else (count,)
    return None if scale == expected else f"a scale of shape {scale} for {x}, axis {axis}; expected {expected}"


# -------------------------------------------------------------------- linear maps


@lowering("QuantizeLinear", types=ANY)
def quantize(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """x / scale + zero point, in the integers or floats of the output's type."""
    x, scale, zero, out = require(inputs, 0), require(inputs, 1), values.at(inputs, 2), require(outputs, 0)
    dtype = b.graph.dtype(out)
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (x, lambda *i: i), "scale": _parameter(b, node, x, scale)}
    eight = types.name_of(dtype).startswith("float8")  # their zero point is 0
    if zero is not None and not eight:
        reads["zero"] = _parameter(b, node, x, zero)
    precision = node.attribute("precision", 0)
    mode = "unbounded" if eight and not node.attribute("saturate", 1) else ""

    def value(
        i: tuple[sympy.Symbol, ...], x: sympy.Expr, scale: sympy.Expr, zero: sympy.Expr | None = None
    ) -> sympy.Expr:
        quotient = scalar.cast(x, dace.float32) / scale
        quotient = scalar.cast(quotient, types.from_onnx(precision)) if precision else quotient
        if types.is_integer(dtype):
            return requantize(quotient, zero, dtype)
        shifted = quotient if zero is None else quotient + scalar.cast(zero, dace.float32)
        return scalar.cast(shifted, dtype, mode)

    b.map(b.graph.shape(x), reads, {"out": (out, lambda *i: i)}, value, label="quantize")


def requantize(value: sympy.Expr, zero: sympy.Expr | None, dtype: DType) -> sympy.Expr:
    """``value`` (a float) rounded, moved by the zero point and clamped to the integers of ``dtype``."""
    low, high = _range(dtype)
    rounded = scalar.round_even(value)
    shifted = rounded if zero is None else rounded + scalar.cast(zero, dace.float32)
    above = scalar.select(scalar.gt(shifted, low), shifted, low)  # NaN is not above
    return scalar.cast(scalar.select(scalar.lt(above, high), above, high), dtype)


def _range(dtype: DType) -> tuple[int, int]:
    name = types.name_of(dtype)
    bits = _BITS.get(name, 8 * types.itemsize(dtype))
    return (0, 2**bits - 1) if name.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@lowering("DequantizeLinear", types=ANY)
def dequantize(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """(x - zero point) * scale; the difference of integers is exact."""
    x, scale, zero, out = require(inputs, 0), require(inputs, 1), values.at(inputs, 2), require(outputs, 0)
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (x, lambda *i: i), "scale": _parameter(b, node, x, scale)}
    if zero is not None and types.is_integer(b.graph.dtype(x)):
        reads["zero"] = _parameter(b, node, x, zero)
    wide = dace.int32 if types.itemsize(b.graph.dtype(x)) < 4 else dace.int64  # what holds any difference

    def value(
        i: tuple[sympy.Symbol, ...], x: sympy.Expr, scale: sympy.Expr, zero: sympy.Expr | None = None
    ) -> sympy.Expr:
        steps = x if zero is None else scalar.cast(x, wide) - scalar.cast(zero, wide)
        return scalar.cast(steps, dace.float32) * scale

    b.map(b.graph.shape(x), reads, {"out": (out, lambda *i: i)}, value, label="dequantize")


@lowering("DynamicQuantizeLinear", types=(dace.float32,))
def dynamic_quantize(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """To uint8, with the scale that just covers the elements and zero."""
    x, out = require(inputs, 0), outputs[0]
    scale = outputs[1] or b.graph.add_array("scale", (), dace.float32)
    zero = outputs[2] or b.graph.add_array("zero_point", (), dace.uint8)
    axes = tuple(range(len(b.graph.shape(x))))
    high, low = (b.reduce(kind, None, x, axes=axes, label=f"quantize_{kind}") for kind in ("max", "min"))
    span = b.elementwise(lambda h, m: _with_zero(scalar.gt, h) - _with_zero(scalar.lt, m), high, low)
    steps = b.constant(np.array(255, np.float32))
    one: dict[str, Any] = {"span": (span, lambda: ()), "steps": (steps, lambda: ()), "low": (low, lambda: ())}
    b.map(
        (),
        {k: one[k] for k in ("span", "steps")},
        {"out": (scale, lambda: ())},
        lambda i, span, steps: scalar.select(scalar.eq(span, 0), 1, span / steps),
        label="quantize_scale",
    )
    b.map(
        (),
        {"low": one["low"], "scale": (scale, lambda: ())},
        {"out": (zero, lambda: ())},
        lambda i, low, scale: requantize(-_with_zero(scalar.lt, low) / scale, None, dace.uint8),
        label="quantize_zero_point",
    )
    if out is not None:
        b.graph.add_operator("QuantizeLinear", [x, scale, zero], [out])


def _with_zero(wins: Callable[[sympy.Expr, sympy.Expr], sympy.Expr], x: sympy.Expr) -> sympy.Expr:
    return scalar.select(wins(x, 0), x, 0)


# -------------------------------------------------------------------- products


@lowering("MatMulInteger", types=_BYTES)
def integer_product(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """(a - its zero point) @ (b - its zero point) in int32."""
    x, y = require(inputs, 0), require(inputs, 1)
    _integer_product(b, x, values.at(inputs, 2), y, values.at(inputs, 3), require(outputs, 0))


def _integer_product(b: Builder, x: str, zero_x: str | None, y: str, zero_y: str | None, out: str) -> None:
    """A product of floats: exact, as no sum reaches the largest integer up to which the type has all of them."""
    depth = b.graph.shape(x)[-1]
    exact = isinstance(depth, int) and depth * 255**2 <= 2**24
    dtype = dace.float32 if exact else dace.float64
    shifted = _shift(b, x, _per_row(b, x, zero_x), dtype), _shift(b, y, zero_y, dtype)
    b.elementwise(lambda v: _wrap(v), b.matmul(*shifted), out=out, label="matmul_integer")


def _wrap(value: sympy.Expr) -> sympy.Expr:
    return scalar.cast(scalar.cast(value, dace.int64), dace.int32)


def _shift(b: Builder, x: str, zero: str | None, dtype: DType) -> str:
    if zero is None:
        return b.cast(x, dtype)
    return b.elementwise(
        lambda v, z: scalar.cast(v, dtype) - scalar.cast(z, dtype), x, zero, dtype=dtype, label="shifted"
    )


def _per_row(b: Builder, x: str, name: str | None) -> str | None:
    """A vector with one element per row of ``x`` becomes a column."""
    if name is None or len(b.graph.shape(name)) != 1 or b.graph.size(name) == 1 or len(b.graph.shape(x)) == 1:
        return name
    return b.unsqueeze(name, [1])


@lowering("QLinearMatMul", types=_BYTES)
def quantized_product(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, scale_x, zero_x, y, scale_y, zero_y, scale, zero = all_required(inputs)
    out = require(outputs, 0)
    total = b.graph.add_array("product", b.graph.shape(out), dace.int32)
    _integer_product(b, x, zero_x, y, zero_y, total)
    _requantize(b, total, str(_per_row(b, x, scale_x)), scale_y, str(_per_row(b, x, scale)), zero, out)


def _requantize(b: Builder, total: str, scale_x: str, scale_y: str, scale: str, zero: str, out: str) -> None:
    """int32 sums to the output's type: rounded after a multiplication with scale_x * scale_y / scale."""
    dtype, shape = b.graph.dtype(out), b.graph.shape(out)
    names = {"u": scale_x, "v": scale_y, "w": scale, "zero": zero}
    reads: dict[str, tuple[str, IndexFunction]] = {"total": (total, lambda *i: i)}
    reads |= {k: (n, _broadcast(b.graph.shape(n))) for k, n in names.items()}

    def value(
        i: tuple[sympy.Symbol, ...], total: sympy.Expr, u: sympy.Expr, v: sympy.Expr, w: sympy.Expr, zero: sympy.Expr
    ) -> sympy.Expr:
        factor = scalar.cast(u * v / w, dace.float32)
        return requantize(scalar.cast(total, dace.float32) * factor, zero, dtype)

    b.map(shape, reads, {"out": (out, lambda *i: i)}, value, label="requantize")


def _broadcast(own: Shape) -> Callable[..., tuple[Dim | None, ...]]:
    return lambda *i: tuple(0 if s == 1 else i[len(i) - len(own) + k] for k, s in enumerate(own))


@lowering("QLinearConv", types=_BYTES)
def quantized_convolution(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """ConvInteger, the bias, and the scale of each output channel."""
    x, scale_x, zero_x, w, scale_w, zero_w, scale, zero = all_required(inputs, 8)
    out, bias = require(outputs, 0), values.at(inputs, 8)
    shape = b.graph.shape(out)
    total = b.graph.add_array("convolution", shape, dace.int32)
    b.graph.add_operator("ConvInteger", [x, w, zero_x, zero_w], [total], dict(node.attributes))
    channels = [1] * (len(shape) - 2)
    if bias is not None:
        total = b.elementwise(lambda t, s: t + s, total, b.reshape(bias, (b.graph.size(bias), *channels)))
    scale_w = b.reshape(scale_w, (b.graph.size(scale_w), *channels))
    _requantize(b, total, scale_x, scale_w, scale, zero, out)


@supports("QLinearConv")
def why_not_convolution(graph: Graph, node: Operator) -> str | None:
    channels, _, *kernel = graph.shape(graph.operand(node, 3))
    if not all(isinstance(k, int) for k in kernel):
        return f"kernel of symbolic size {tuple(kernel)}; expected a fixed one"
    for position in (4, 5):
        size = graph.size(graph.operand(node, position))
        if size not in (1, channels):
            return f"{size} elements in {node.input_connectors[position]}; expected 1 or {channels}"
    x, w = (graph.shape(graph.operand(node, k)) for k in (0, 3))
    return why_not_window(graph, node, len(kernel)) or why_not_groups(node, x, w)


without_gradient("QuantizeLinear")
