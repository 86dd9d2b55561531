"""Products and convolutions of dequantised operands computed on the integers themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import dace
import numpy as np

from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operators import constant, is_op
from daceopt.ir.graph.operators import scalar as scalar_of
from daceopt.ir.nodes.quantized import BYTES, QuantizedConvolution, QuantizedProduct
from daceopt.libs.onednn_quantized import why_no_units
from daceopt.ops.core import values
from daceopt.ops.families.convolution import window
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._quantization import (
    NotPlain,
    Steps,
    constant_of,
    dequantization,
    to_signed,
    weights_of,
)

_OPERATORS = ("Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul")
_SUM_LIMIT = 2**31
_LEAST, _MOST = 1e-30, 1e20  # factors that float32 holds well


@dataclass(frozen=True)
class _Quantized:
    """What a node gets: ``y = t * scale + shift`` of the sums ``t``, then to integers if ``zero_y`` is one."""

    x: str
    weights: np.ndarray | str
    scale: np.ndarray
    out: str
    shift: np.ndarray | None = None
    zero_x: int = 0
    zero_w: int = 0
    zero_y: int | None = None
    low: int = -255
    high: int = 255
    members: tuple[Any, ...] = ()


@dataclass(frozen=True)
class QuantizedProducts(Transformation):
    """Multiply 8-bit integers in the units for them, and scale the exact sums.

    before:  y = QuantizeLinear(Relu(Conv(DequantizeLinear(x, a, u), DequantizeLinear(w, c), b)), d, v)
    after:   y = QuantizedConvolution(x, w, S=a*c/d, B=b/d; zero_x=u, zero_y=v, low=0)

    Products with constant matrices (``MatMul``, ``Gemm``) and ``QLinearConv`` and ``QLinearMatMul`` alike. Scales and
    zero points are constants; weights are around 0, or can be put there, with a scale for each output channel or one
    for all. A result that is not quantised is float32. A sum of integers has no rounding: results are those of exact
    arithmetic but where float32 cannot tell which integer is nearer.
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not is_op(node, *_OPERATORS) or graph.options.target != "cpu":
            return
        try:
            quantized = _read(graph, node)
        except NotPlain as reason:
            yield NearMiss(node, str(reason))
            return
        if quantized is not None:
            yield Site(graph, quantized.members, {"quantized": quantized})

    def apply(self, site: Site) -> None:
        graph, node, product = site.graph, site.nodes[0], site["quantized"]
        hint = graph.source.names.get(product.out, product.out)
        is_computed = isinstance(product.weights, str)
        weights = product.weights if is_computed else graph.add_constant(f"{hint}_weights", product.weights)
        reads = {"X": product.x, "W": weights}
        reads["S"] = graph.add_constant(f"{hint}_scale", np.ascontiguousarray(product.scale, np.float64))
        if product.shift is not None and np.any(product.shift):
            reads["B"] = graph.add_constant(f"{hint}_shift", np.ascontiguousarray(product.shift, np.float64))
        settings = {"zero_x": product.zero_x, "zero_y": product.zero_y or 0, "low": product.low, "high": product.high}
        kind: Any = QuantizedProduct
        if is_computed:
            settings["zero_w"] = product.zero_w
        if is_op(node, "Conv", "QLinearConv"):
            kind = QuantizedConvolution
            kernel = list(graph.shape(weights)[2:])
            settings |= window(graph, node, product.x, kernel, graph.result(node, 0))
            settings["group"] = int(node.attribute("group", 1))
        graph.take_out(product.members)
        graph.add_node(kind(node.label, inputs=list(reads), **settings), reads, {"Y": product.out})


def _read(graph: Graph, node: Node) -> _Quantized | None:
    """What ``node`` multiplies; None for floats. Raises NotPlain."""
    product = _of_integers(graph, node) if node.op_type.startswith("QLinear") else _of_floats(graph, node)
    if product is None:
        return None
    if (reason := why_no_units() or ops.why_unsupported(graph, node)) is not None:
        raise NotPlain(reason)
    if graph.dtype(product.x) not in BYTES:
        raise NotPlain(f"an operand of {graph.dtype(product.x)}; expected int8 or uint8")
    taps = _taps(graph, product)
    if not isinstance(taps, int) or taps * 255 * (128 + 127 * isinstance(product.weights, str)) >= _SUM_LIMIT:
        raise NotPlain(f"sums of {taps} products may be larger than 32 bits hold")
    if not _is_between(product.scale) or (
        product.shift is not None and not _is_between(product.shift[product.shift != 0])
    ):
        raise NotPlain("scales whose product float32 does not hold")
    return product


def _taps(graph: Graph, quantized: _Quantized) -> Any:
    """How many products a sum has."""
    if isinstance(quantized.weights, str):
        return graph.shape(quantized.x)[-1]
    return quantized.weights.size // len(quantized.scale)


def _is_between(numbers: np.ndarray) -> bool:
    return bool(np.all((np.abs(numbers) > _LEAST) & (np.abs(numbers) < _MOST)))


# -------------------------------------------------------------------- floats around integers


def _of_floats(graph: Graph, node: Node) -> _Quantized | None:
    inputs = graph.inputs_of(node)
    pair = dequantization(graph, inputs[0])
    if pair is None:
        return None
    out, bias = graph.result(node, 0), values.at(inputs, 2)
    if graph.dtype(out) != dace.float32:
        raise NotPlain(f"a result of {graph.dtype(out)}; expected float32")
    scale_x, zero_x = pair[1].whole("the operand")
    if node.op_type == "MatMul" and (both := _both(graph, pair[0], str(inputs[1]))) is not None:
        name, scale_w, zero_w = both
        scale = np.array([scale_x * scale_w])
        return _requantize(graph, _Quantized(pair[0], name, scale, out, None, zero_x, zero_w, members=(node,)))
    weights, scale = _weights(graph, node, str(inputs[1]))
    first = _Quantized(pair[0], weights, scale * scale_x, out, zero_x=zero_x, members=(node,))
    if bias is not None:
        added = constant_of(graph, bias)
        if added is None:
            raise NotPlain(f"the bias {bias} is no constant")
        first = replace(first, shift=_per_channel(added, len(scale), bias))
    return _requantize(graph, _with_sums(graph, node, first))


def _both(graph: Graph, x: str, name: str) -> tuple[str, float, int] | None:
    """The second operand as integers of one scale, where neither is constant: (array, scale, zero point)."""
    pair = dequantization(graph, name)
    if pair is None or constant(graph, pair[0]) is not None:
        return None
    shape, other = graph.shape(x), graph.shape(pair[0])
    if len(shape) < 2 or len(shape) != len(other) or shape[:-2] != other[:-2]:
        raise NotPlain(f"operands of shapes {shape} and {other}; expected the same batches")
    if graph.dtype(pair[0]) not in BYTES:
        raise NotPlain(f"an operand of {graph.dtype(pair[0])}; expected int8 or uint8")
    return pair[0], *pair[1].whole("the second operand")


def _weights(graph: Graph, node: Node, name: str) -> tuple[np.ndarray, np.ndarray]:
    """As the node wants them, with the scale of each output channel."""
    if node.op_type == "Conv":
        return weights_of(graph, name, 0)
    if len(graph.shape(name)) != 2 or len(graph.shape(graph.operand(node, 0))) < 2:
        raise NotPlain("batches of matrices, or vectors, on one side")
    plain = all(node.attribute(a, 1.0) == 1 for a in ("alpha", "beta")) and not node.attribute("transA", 0)
    if node.op_type == "Gemm" and not plain:
        raise NotPlain("a product with factors, or of a transposed operand")
    transposed = node.op_type == "Gemm" and bool(node.attribute("transB", 0))
    weights, scale = weights_of(graph, name, 0 if transposed else 1)
    return np.ascontiguousarray(weights.T) if transposed else weights, scale


def _per_channel(value: np.ndarray, channels: int, name: str) -> np.ndarray:
    if value.size not in (1, channels) or (value.size != 1 and value.shape[-1] != channels):
        raise NotPlain(f"{name} of shape {value.shape} is no number per channel")
    return np.broadcast_to(value.reshape(-1), (channels,))


def _with_sums(graph: Graph, node: Node, quantized: _Quantized) -> _Quantized:
    """With what is added to a product behind it, where that is a number for each column."""
    reader = _reader(graph, quantized.out)
    if node.op_type != "MatMul" or not is_op(reader, "Add"):
        return quantized
    other = next((n for n in graph.inputs_of(reader) if n != quantized.out), None)
    try:
        added = constant_of(graph, other)
        own = None if added is None else _per_channel(added, len(quantized.scale), str(other))
    except NotPlain:
        return quantized
    out = graph.result(reader, 0)
    if own is None or len(graph.shape(out)) != len(graph.shape(quantized.out)):
        return quantized
    return replace(quantized, out=out, shift=own, members=(*quantized.members, reader))


def _reader(graph: Graph, name: str) -> Any | None:
    """The operator that alone reads ``name``."""
    readers = graph.all_consumers(name)
    alone = len(readers) == 1 and not graph.is_kept(name) and not graph.views_of(name)
    return readers[0] if alone else None


def _requantize(graph: Graph, quantized: _Quantized) -> _Quantized:
    """With bounds and a quantisation behind it, where there is one that integers can do; else as it is."""
    members, out, bounds = quantized.members, quantized.out, (-np.inf, np.inf)
    reader = _reader(graph, out)
    if is_op(reader, "Relu", "Clip"):
        limits = _limits(graph, reader)
        if limits is None:
            return quantized
        members, out, bounds = (*members, reader), graph.result(reader, 0), limits
        reader = _reader(graph, out)
    if reader is None or not is_op(reader, "QuantizeLinear") or graph.dtype(graph.result(reader, 0)) not in BYTES:
        return quantized
    if reader.attribute("precision", 0) not in (0, 1):
        return quantized
    try:
        scale, zero = Steps.of(graph, reader).whole("the result")
    except NotPlain:
        return quantized
    low, high = (int(np.clip(np.rint(b / scale), -255, 255)) for b in bounds)
    shift = None if quantized.shift is None else quantized.shift / scale
    out, members = graph.result(reader, 0), (*members, reader)
    return replace(
        quantized, out=out, members=members, scale=quantized.scale / scale, shift=shift, zero_y=zero, low=low, high=high
    )


def _limits(graph: Graph, node: Node) -> tuple[float, float] | None:
    """What a Relu or Clip lets through; None where nobody knows, or nothing can."""
    if node.op_type == "Relu":
        return 0.0, np.inf
    inputs: Sequence[str | None] = graph.inputs_of(node)
    ends = []
    for position, (name, default) in enumerate((("min", -np.inf), ("max", np.inf)), start=1):
        operand = values.at(inputs, position)
        own = node.attribute(name) if operand is None else scalar_of(graph, operand)
        if own is None and operand is not None:
            return None
        ends.append(default if own is None else float(own))
    return (ends[0], ends[1]) if ends[0] <= ends[1] else None


# -------------------------------------------------------------------- operators of integers


def _of_integers(graph: Graph, node: Node) -> _Quantized | None:
    """QLinearConv and QLinearMatMul: their bias is in steps of the sums."""
    inputs = graph.operands(node, 8)
    x, w, rank = inputs[0], constant(graph, inputs[3]), len(graph.shape(inputs[3]))
    if w is None:
        raise NotPlain(f"the weights {inputs[3]} are no constant")
    axis = 0 if node.op_type == "QLinearConv" else 1
    if axis == 1 and (rank != 2 or len(graph.shape(x)) < 2):
        raise NotPlain("batches of matrices, or vectors, on one side")
    of_x, of_w, of_y = (Steps.of(graph, node, first, rank) for first in (1, 4, 6))
    scale_x, zero_x = of_x.whole("the operand")
    scale_y, zero_y = of_y.whole("the result")
    of_w = replace(of_w, axis=axis)
    scale = of_w.along(axis, w.shape[axis]) * scale_x / scale_y
    bias = values.at(graph.inputs_of(node), 8) if axis == 0 else None
    added = constant(graph, bias)
    if bias is not None and added is None:
        raise NotPlain(f"the bias {bias} is no constant")
    shift = None if added is None else added.astype(np.float64) * scale
    weights, out = to_signed(w, of_w), graph.result(node, 0)
    return _Quantized(x, weights, scale, out, shift, zero_x, zero_y=zero_y, members=(node,))
