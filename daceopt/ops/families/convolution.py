"""Convolutions and their transposes as library nodes; windows, paddings and ``auto_pad``, which pooling shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace
import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import FLOATS, Names, Operator, lowering, supports


def window(graph: Graph, node: Operator, x: str, kernel: list[int], out: str) -> dict[str, Any]:
    """Attributes ``strides``, ``dilations`` and ``pads`` of a library node, with defaults and ``auto_pad`` resolved."""
    rank = len(kernel)
    strides = list(node.attribute("strides") or [1] * rank)
    dilations = list(node.attribute("dilations") or [1] * rank)
    pads = list(node.attribute("pads") or [0] * (2 * rank))
    mode = node.attribute("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(graph, x, out, kernel, strides, dilations, mode == "SAME_UPPER")
    return {"strides": strides, "dilations": dilations, "pads": [0] * (2 * rank) if mode == "VALID" else pads}


def _same_pads(
    graph: Graph, x: str, out: str, kernel: list[int], strides: list[int], dilations: list[int], upper: bool
) -> list[int]:
    begins, ends = [], []
    for k, (size, result) in enumerate(zip(graph.shape(x)[2:], graph.shape(out)[2:])):
        total = max(0, (int(result) - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - int(size))
        begins.append(total // 2 if upper else total - total // 2)
        ends.append(total - begins[-1])
    return begins + ends


def why_not_window(graph: Graph, node: Operator, rank: int) -> str | None:
    """The reason for which a window operator over ``rank`` spatial dimensions has no library node."""
    x = graph.operand(node, 0)
    if rank not in (1, 2, 3) or len(graph.shape(x)) != rank + 2:
        return f"{rank} spatial dimensions over an input of shape {graph.shape(x)}; supported are 1 to 3"
    if (reason := why_not_steps(node, rank)) is not None:
        return reason
    mode = node.attribute("auto_pad", "NOTSET")
    if mode.startswith("SAME") and not all(isinstance(s, int) for s in graph.shape(x)[2:]):
        return f"auto_pad={mode} over symbolic spatial dimensions {graph.shape(x)[2:]}; expected fixed ones"
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        return f"auto_pad={mode!r}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
    return None


@lowering("Conv", types=FLOATS, factors=True)
def convolution(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, w, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    bias = values.at(inputs, 2)
    reads = {"X": x, "W": w} | ({"B": bias} if bias is not None else {})
    attributes = window(b.graph, node, x, [int(k) for k in b.graph.shape(w)[2:]], out)
    b.library(Convolution, reads, {"Y": out}, group=int(node.attribute("group", 1)), **attributes)


@supports("Conv")
def why_not_convolution(graph: Graph, node: Operator) -> str | None:
    kernel = graph.shape(graph.operand(node, 1))[2:]
    if not all(isinstance(k, int) for k in kernel):
        return f"kernel of symbolic size {kernel}; expected a fixed one"
    x, w = map(graph.shape, graph.operands(node, 2))
    return why_not_window(graph, node, len(kernel)) or why_not_groups(node, x, w)


def why_not_groups(node: Operator, x: tuple[Dim, ...], w: tuple[Dim, ...]) -> str | None:
    """The reason for which channels and kernel of these shapes do not split into the node's groups."""
    group = node.attribute("group", 1)
    channels = w[0] if node.op_type == "ConvTranspose" else dim(w[1] * group)
    uneven = isinstance(w[0], int) and group > 0 and w[0] % group
    if group < 1 or uneven or dim(channels - x[1]) != 0:
        return f"{group} groups of {x[1]} channels with a kernel of shape {w}"
    return None


def zero_padded(b: Builder, x: str, begins: Sequence[int], ends: Sequence[int]) -> str:
    """``x`` with zeros before and after each of its last dimensions (negative: elements removed)."""
    shape = list(b.graph.shape(x))
    lead = len(shape) - len(begins)
    if not any((*begins, *ends)):
        return x
    for k, (begin, end) in enumerate(zip(begins, ends)):
        shape[lead + k] = dim(shape[lead + k] + begin + end)
    out = b.graph.add_array("padded", shape, b.graph.dtype(x))
    pads = b.constant(np.asarray([*[0] * lead, *begins, *[0] * lead, *ends], np.int64))
    b.graph.add_operator("Pad", [x, pads], [out])
    return out


def per_channel(b: Builder, name: str, rank: int) -> str:
    """[C] as [C, 1, ...], which broadcasts over [N, C, d...] of ``rank`` dimensions."""
    return b.reshape(name, (*b.graph.shape(name), *[1] * max(rank - 2, 0)))


# -------------------------------------------------------------------- transposed


@lowering("ConvTranspose", types=FLOATS, factors=True)
def transposed_convolution(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The transpose of a convolution in its data, and the bias. W: [C, M/group, k...]."""
    x, w, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    bias, shape = values.at(inputs, 2), b.graph.shape(out)
    begins, ends, missing = _transposed_pads(b.graph, node, x, w, out)
    attributes = steps(node, len(begins)) | {"pads": begins + ends, "group": int(node.attribute("group", 1))}
    last = bias is None and not any(missing)
    reached = [*shape[:2], *(dim(e - m) for e, m in zip(shape[2:], missing))]
    y = out if last else b.graph.add_array("transposed", reached, b.graph.dtype(x))
    b.library(ConvolutionBackwardData, {"dY": x, "W": w}, {"dX": y}, **attributes)
    if last:
        return
    y = zero_padded(b, y, [0] * len(missing), missing)
    if bias is None:
        b.copy(y, out=out)
    else:
        b.elementwise(lambda v, c: v + c, y, per_channel(b, bias, len(shape)), out=out, label="bias")


def steps(node: Operator, rank: int) -> dict[str, list[int]]:
    """Strides and dilations, with defaults."""
    return {name: list(node.attribute(name) or [1] * rank) for name in ("strides", "dilations")}


def why_not_steps(node: Operator, rank: int) -> str | None:
    """The reason for which strides or dilations say nothing about ``rank`` dimensions."""
    for name, numbers in steps(node, rank).items():
        if len(numbers) != rank or min(numbers, default=1) < 1:
            return f"{name} {numbers}; expected {rank} positive ones"
    return None


def _transposed_pads(graph: Graph, node: Operator, x: str, w: str, out: str) -> tuple[list[Dim], list[Dim], list[Dim]]:
    """Pads of the convolution whose transpose is wanted, and how many elements at the end it does not reach.

    A convolution ignores up to ``stride - 1`` elements at its end, so an output padding below the stride costs nothing.
    """
    kernel = graph.shape(w)[2:]
    rank, step = len(kernel), steps(node, len(kernel))
    mode, pads = node.attribute("auto_pad", "NOTSET"), node.attribute("pads") or [0] * (2 * rank)
    added = node.attribute("output_padding") or [0] * rank
    derived = bool(node.attribute("output_shape")) or mode.startswith("SAME")
    begins: list[Dim] = []
    ends: list[Dim] = []
    missing: list[Dim] = []
    for k, (size, result) in enumerate(zip(graph.shape(x)[2:], graph.shape(out)[2:])):
        reach = dim((size - 1) * step["strides"][k] + (kernel[k] - 1) * step["dilations"][k] + 1)
        if derived:
            total = dim(reach + added[k] - result)
            total = max(0, total) if isinstance(total, int) else total
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
        else:
            begin = 0 if mode == "VALID" else pads[k]
        end = dim(reach - result - begin)
        beyond = 1 - step["strides"][k] - end
        begins.append(begin)
        ends.append(max(end, 0) if isinstance(end, int) else end)
        missing.append(max(beyond, 0) if isinstance(beyond, int) else beyond)
    return begins, ends, missing


@supports("ConvTranspose")
def why_not_transposed(graph: Graph, node: Operator) -> str | None:
    reason = why_not_convolution(graph, node)
    if reason is not None:
        return reason
    (x, w), out = graph.operands(node, 2), graph.result(node, 0)
    if len(graph.shape(out)) != len(graph.shape(x)):
        return f"a result of shape {graph.shape(out)}; expected as many dimensions as in {graph.shape(x)}"
    begins, ends, missing = _transposed_pads(graph, node, x, w, out)
    if not all(isinstance(p, int) for p in (*begins, *ends, *missing)):
        return f"padding that depends on the input's size {graph.shape(x)[2:]}; expected a fixed one"
    return f"negative padding {begins}; expected none" if min(begins) < 0 else None


# -------------------------------------------------------------------- integers, states

_EXACT_FLOAT32 = 2**24


@lowering("ConvInteger", types=(dace.int8, dace.uint8))
def integer_convolution(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """A convolution of floats that hold every partial sum exactly, so the order of additions does not matter."""
    x, w, out = require(inputs, 0), require(inputs, 1), require(outputs, 0)
    shape = b.graph.shape(w)
    largest = sympy.Mul(255 * 255, *shape[1:])
    dtype = dace.float32 if largest <= _EXACT_FLOAT32 else dace.float64
    attributes = window(b.graph, node, x, [int(k) for k in shape[2:]], out)
    centred = {
        "X": _centre(b, x, values.at(inputs, 2), dtype),
        "W": _centre(b, w, values.at(inputs, 3), dtype),
    }
    total = b.graph.add_array("exact", b.graph.shape(out), dtype)
    b.library(Convolution, centred, {"Y": total}, group=int(node.attribute("group", 1)), **attributes)
    # by way of int64, so that what does not fit wraps
    b.elementwise(
        lambda v: scalar.cast(scalar.cast(v, dace.int64), dace.int32),
        total,
        dtype=dace.int32,
        out=out,
        label="integers",
    )


def _centre(b: Builder, x: str, zero: str | None, dtype: DType) -> str:
    """``x`` less its zero point, which is one number or one per entry of the first dimension."""
    if zero is None:
        return b.cast(x, dtype)
    rank = len(b.graph.shape(x))
    one = b.graph.size(zero) == 1
    zero = b.reshape(zero, ()) if one else b.reshape(zero, (*b.graph.shape(zero), *[1] * (rank - 1)))
    return str(
        b.elementwise(lambda v, z: scalar.cast(v, dtype) - scalar.cast(z, dtype), x, zero, dtype=dtype, label="centred")
    )


supports("ConvInteger")(lambda graph, node: why_not_convolution(graph, node))


@lowering("CausalConvWithState", types=FLOATS)
def causal_convolution(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """A depthwise convolution over the past (k - 1 columns, zero when absent) and the input; the new past.

    input: [N, C, L]; weight: [C, 1, k]; past_state, present_state: [N, C, k - 1].
    """
    x, w, bias, past = require(inputs, 0), require(inputs, 1), values.at(inputs, 2), values.at(inputs, 3)
    batch, channels, length = b.graph.shape(x)
    reach = b.graph.shape(w)[2] - 1
    dtype = b.graph.dtype(x)
    if past is None:
        past = b.full((batch, channels, reach), 0, dtype)
    whole = b.graph.add_array("history", (batch, channels, dim(length + reach)), dtype)
    b.graph.add_operator("Concat", [past, x], [whole], {"axis": 2})
    plain = outputs[0] is not None and node.attribute("activation", "none") == "none"
    y = require(outputs, 0) if plain else b.graph.add_array("causal", (batch, channels, length), dtype)
    attributes = {"group": channels, "strides": [1], "dilations": [1], "pads": [0, 0]}
    b.library(Convolution, {"X": whole, "W": w} | ({"B": bias} if bias is not None else {}), {"Y": y}, **attributes)
    if not plain:
        b.elementwise(lambda v: v * scalar.sigmoid(v), y, out=outputs[0], label="silu")
    if values.at(outputs, 1) is not None:
        b.slice(whole, [length], [dim(length + reach)], axes=[2], out=outputs[1])


@supports("CausalConvWithState")
def why_not_causal(graph: Graph, node: Operator) -> str | None:
    x, w = map(graph.shape, graph.operands(node, 2))
    if not isinstance(x[1], int) or not isinstance(w[2], int):
        return f"{x[1]} channels and a kernel of {w[2]}; expected fixed numbers"
    activation = node.attribute("activation", "none")
    return None if activation in ("none", "silu", "swish") else f"activation {activation!r}; expected silu or swish"
