"""Convolutions and their transposes as Conv and ConvTranspose, which libraries compute and differentiate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.nodes.library import ConvolutionBackwardData, ConvolutionBackwardWeights
from daceopt.ir.scalar import types


def _per_dimension(values: Sequence[int], rank: int) -> list[int]:
    """One number for all dimensions, or one for each."""
    return [int(v) for v in values] * (rank if len(values) == 1 else 1)


def _check(t: Translation, x: str, weight: str, groups: object) -> int:
    """The number of spatial dimensions."""
    shape, kernel = t.shape_of(weight), t.shape_of(weight)[2:]
    if not types.is_float(t.dtype_of(x)):
        raise Unsupported(f"a convolution over {types.name_of(t.dtype_of(x))}; supported are floats")
    if not all(isinstance(k, int) for k in shape) or len(kernel) not in (1, 2, 3):
        raise Unsupported(f"a convolution with a kernel of shape {shape}; expected known extents, 1 to 3 spatial ones")
    if 0 in (*shape, *t.shape_of(x), *t.shape):
        raise Unsupported(f"a convolution of {t.shape_of(x)} with {shape}: without elements")
    return len(kernel)


@translates("convolution")
def convolution(
    t: Translation,
    input: str,
    weight: str,
    bias: str | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    rank = _check(t, input, weight, groups)
    attributes: dict[str, Any] = {
        "kernel_shape": list(t.shape_of(weight)[2:]),
        "strides": _per_dimension(stride, rank),
        "dilations": _per_dimension(dilation, rank),
        "pads": _per_dimension(padding, rank) * 2,
        "group": int(groups),
    }
    operands = [input, weight] + ([] if bias is None else [bias])
    if not transposed:
        return t.operator("Conv", *operands, **attributes)
    added = _per_dimension(output_padding, rank)
    return t.operator("ConvTranspose", *operands, output_padding=added, **attributes)


@translates("conv_tbc")
def conv_tbc(t: Translation, self: str, weight: str, bias: str, pad: int) -> str:
    """Time first: [T, B, C] with a kernel [k, C, D]."""
    kernel = t.transpose(weight, [2, 1, 0])
    _check(t, self, kernel, 1)
    steps, batch, channels = t.shape
    promise = Promise((batch, channels, steps), t.dtype)
    window: dict[str, Any] = {
        "kernel_shape": [t.shape_of(weight)[0]],
        "strides": [1],
        "dilations": [1],
        "pads": [int(pad)] * 2,
    }
    y = t.operator("Conv", t.transpose(self, [1, 2, 0]), kernel, bias, results=[promise], group=1, **window)
    return t.transpose(y, [2, 0, 1])


@translates("convolution_backward", derivative="aten")
def convolution_backward(
    t: Translation,
    grad_output: str,
    input: str,
    weight: str,
    bias_sizes: object,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[str | None, ...]:
    """Gradients of input, weight and bias, as far as ``output_mask`` wants them."""
    if 0 in (*t.shape_of(grad_output), *t.shape_of(input), *t.shape_of(weight)):
        raise Unsupported("gradients of a convolution without elements")
    rank = len(t.shape_of(weight)) - 2
    window = {
        "strides": _per_dimension(stride, rank),
        "dilations": _per_dimension(dilation, rank),
        "pads": _per_dimension(padding, rank) * 2,
        "group": int(groups),
    }
    if transposed or not all(isinstance(k, int) for k in t.shape_of(weight)):
        raise Unsupported("gradients of a transposed convolution, or of one with a kernel of symbolic size")
    promised = [p if needs_grad else None for p, needs_grad in zip(t.promised, output_mask)]
    dx, dw, db = (None if p is None else t.graph.add_array(t.label, *p) for p in promised)
    if dx is not None:
        t.b.library(ConvolutionBackwardData, {"dY": grad_output, "W": weight}, {"dX": dx}, **window)
    if dw is not None:
        t.b.library(ConvolutionBackwardWeights, {"X": input, "dY": grad_output}, {"dW": dw}, **window)
    if db is not None:
        axes = [k for k in range(rank + 2) if k != 1]
        t.b.reduce("sum", None, grad_output, axes=axes, dtype=t.dtype_of(db), out=db)
    return dx, dw, db
