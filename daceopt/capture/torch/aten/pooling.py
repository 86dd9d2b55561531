"""Pools: windows of one size as MaxPool and AveragePool, those of adaptive pools as taps; gradients from indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace
import numpy as np
import sympy

from daceopt.capture.torch.aten.resize import apply_tables
from daceopt.capture.torch.calls import Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.nodes.library import PoolBackward
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.families.convolution import zero_padded
from daceopt.ops.families.interpolation import Table
from daceopt.ops.families.pooling import window_sum

_EXACT_IN = {"int8": None, "uint8": None, "int16": dace.float32, "int32": dace.float64}  # integers: where maxima are


def _window(rank: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> tuple[list[int], ...]:
    """Kernel, strides and padding for each dimension."""
    kernel, stride, padding = ([int(v) for v in values] for values in (kernel, stride or kernel, padding))
    return tuple(values * (rank if len(values) == 1 else 1) for values in (kernel, stride, padding))


def _batch(t: Translation, x: str, rank: int) -> str:
    """``x`` as [N, C, d...]."""
    shape = t.shape_of(x)
    return x if len(shape) == rank + 2 else t.reshape(x, (1,) * (rank + 2 - len(shape)) + tuple(shape))


def _promise(t: Translation, rank: int, position: int = 0, dtype: DType | None = None) -> Promise:
    """A result as [N, C, d...]."""
    shape, own = t.promised[position]
    return Promise((1,) * (rank + 2 - len(shape)) + tuple(shape), own if dtype is None else dtype)


def _check_floats(t: Translation, x: str) -> None:
    if not types.is_float(t.dtype_of(x)):
        raise Unsupported(f"an average over {types.name_of(t.dtype_of(x))}; supported are floats")


# -------------------------------------------------------------------- averages


@translates("avg_pool2d", "avg_pool3d")
def avg_pool(
    t: Translation,
    self: str,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> str:
    _check_floats(t, self)
    rank = 2 if "2d" in t.label else 3
    kernel, strides, pads = _window(rank, kernel_size, stride, padding)
    x = _batch(t, self, rank)
    if divisor_override is not None:
        return _divide(t, x, (kernel, strides, pads), divisor_override)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads * 2}
    attributes |= {"ceil_mode": int(ceil_mode), "count_include_pad": int(count_include_pad)}
    y = t.operator("AveragePool", x, results=[_promise(t, rank)], **attributes)
    return t.reshape(y, t.shape)


def _divide(t: Translation, x: str, window: tuple[list[int], ...], divisor: int) -> str:
    """Sums over windows by a divisor of the caller's."""
    kernel, strides, pads = window
    rank, wide = len(kernel), types.compute_type(t.dtype)
    shape, extents = _promise(t, rank).shape, t.shape_of(x)[2:]
    ends = [_beyond(n, o, k, s, p) for n, o, k, s, p in zip(extents, shape[2:], kernel, strides, pads)]
    padded = zero_padded(t.b, t.cast(x, wide), pads, ends)
    taps = {2 + k: (kernel[k], strides[k], 1) for k in range(rank)}
    total = window_sum(t.b, lambda v: v, padded, shape, taps)
    return t.kernel(lambda v: v / sympy.Integer(divisor), t.reshape(total, t.shape))


def _beyond(extent: Dim, result: Dim, kernel: int, stride: int, pad: int) -> int:
    """How many elements behind the input the last window reads."""
    reach = dim((result - 1) * stride + kernel - extent - pad)
    return max(reach, 0) if isinstance(reach, int) else kernel + stride


@translates("avg_pool2d_backward", "avg_pool3d_backward", derivative="aten")
def avg_pool_backward(
    t: Translation,
    grad_output: str,
    self: str,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> str:
    _check_floats(t, self)
    if divisor_override is not None:
        raise Unsupported("the gradient of an average with a divisor of its own")
    rank = 2 if "2d" in t.label else 3
    kernel, strides, pads = _window(rank, kernel_size, stride, padding)
    out = t.graph.add_array(t.label, *_promise(t, rank))
    attributes: dict[str, Any] = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    attributes |= {"kernel": kernel, "strides": strides, "pads": pads * 2, "dilations": [1] * rank}
    t.b.library(PoolBackward, {"dY": _batch(t, grad_output, rank)}, {"dX": out}, kind="average", **attributes)
    return t.reshape(out, t.shape)


@translates("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(t: Translation, self: str, output_size: Sequence[Dim]) -> str:
    """Windows of one size where the extents are multiples; else one axis after the other."""
    _check_floats(t, self)
    rank = 2 if "2d" in t.label else 3
    before, after = t.shape_of(self)[-rank:], t.shape[-rank:]
    sizes = _multiples(before, after)
    if sizes is not None:
        x, one = _batch(t, self, rank), _promise(t, rank)
        y = t.operator("AveragePool", x, results=[one], kernel_shape=sizes, strides=sizes, pads=[0] * (2 * rank))
        return t.reshape(y, t.shape)
    tables = _adaptive_tables(before, after)
    return apply_tables(t, self, tables)


@translates("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", derivative="aten")
def adaptive_avg_pool_backward(t: Translation, grad_output: str, self: str) -> str:
    _check_floats(t, self)
    rank = 2 if "2d" in t.label else 3
    before, after = t.shape[-rank:], t.shape_of(grad_output)[-rank:]
    tables = [None if x is None else x.transpose(n) for x, n in zip(_adaptive_tables(before, after), before)]
    return apply_tables(t, grad_output, tables)


def _multiples(before: Sequence[Dim], after: Sequence[Dim]) -> list[int] | None:
    """Sizes of the windows where all are equal and none is empty."""
    if not all(isinstance(n, int) and n > 0 for n in (*before, *after)):
        return None
    return [n // m for n, m in zip(before, after)] if not any(n % m for n, m in zip(before, after)) else None


def _adaptive_tables(before: Sequence[Dim], after: Sequence[Dim]) -> list[Table | None]:
    """Result o averages elements from floor(o n / m) to ceil((o + 1) n / m); None where nothing changes."""
    if not all(isinstance(n, int) for n in (*before, *after)):
        raise Unsupported(f"an adaptive pool from {before} to {after}; expected extents that are known or multiples")
    return [None if n == m else _adaptive_table(int(n), int(m)) for n, m in zip(before, after)]


def _adaptive_table(extent: int, result: int) -> Table:
    if extent == 0 or result == 0:
        raise Unsupported(f"an adaptive pool from {extent} to {result} elements")
    at = np.arange(result)
    start, end = at * extent // result, -(-(at + 1) * extent // result)
    places = start[:, None] + np.arange((end - start).max())[None, :]
    inside = places < end[:, None]
    weight = np.where(inside, 1 / (end - start)[:, None], 0.0)
    return Table(np.where(inside, places, start[:, None]), weight, None)


# -------------------------------------------------------------------- maxima


@translates("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    t: Translation,
    self: str,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[str, str]:
    rank = 2 if "2d" in t.label else 3
    kernel, strides, pads = _window(rank, kernel_size, stride, padding)
    steps = _window(rank, dilation, (), ())[0]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads * 2, "dilations": steps}
    return _maxima(t, self, rank, {**attributes, "ceil_mode": int(ceil_mode)})


@translates("adaptive_max_pool2d", "adaptive_max_pool3d", derivative="aten")
def adaptive_max_pool(t: Translation, self: str, output_size: Sequence[Dim]) -> tuple[str, str]:
    rank = 2 if "2d" in t.label else 3
    before, after = t.shape_of(self)[-rank:], t.shape[-rank:]
    sizes = _multiples(before, after)
    if sizes is None:
        raise Unsupported(f"an adaptive maximum from {before} to {after}; expected multiples")
    return _maxima(t, self, rank, {"kernel_shape": sizes, "strides": sizes, "pads": [0] * (2 * rank)})


def _maxima(t: Translation, x: str, rank: int, attributes: dict[str, Any]) -> tuple[str, str]:
    """Maxima, and where they are in their image."""
    name = types.name_of(t.dtype_of(x))
    if not types.is_float(t.dtype_of(x)) and name not in _EXACT_IN:
        raise Unsupported(f"a maximum over windows of {name}")
    if 0 in (*t.shape_of(x), *t.shape):
        raise Unsupported(f"a maximum over windows from {t.shape_of(x)} to {t.shape}: without elements")
    wide = _EXACT_IN.get(name) or t.dtype
    results = [_promise(t, rank, dtype=wide), _promise(t, rank, 1)]
    y, flat = t.operators("MaxPool", _batch(t, t.cast(x, wide), rank), results=results, **attributes)
    image = dim(sympy.Mul(*t.shape_of(x)[-rank:]))
    promise = t.promised[1]
    where = t.b.elementwise(lambda i: scalar.pymod(i, image), t.reshape(flat, promise.shape), dtype=promise.dtype)
    return t.cast(t.reshape(y, t.shape), t.dtype), where


@translates("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", derivative="aten")
@translates("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", derivative="aten")
@translates("fractional_max_pool2d_backward", "fractional_max_pool3d_backward", derivative="aten")
def max_pool_backward(t: Translation, grad_output: str, indices: str, **window: object) -> str:
    """What each image's maxima get, added up where they are."""
    rank = 2 if "2d" in t.label else 3
    lead, own = t.shape[:-rank], t.shape_of(grad_output)
    if not types.is_float(t.dtype) or not all(isinstance(n, int) and n > 0 for n in (*t.shape, *own)):
        raise Unsupported(f"gradients of maxima of {types.name_of(t.dtype)} with shapes {own} and {t.shape}")
    count, image, places = (int(np.prod(s)) for s in (lead, t.shape[-rank:], own[-rank:]))
    wide = types.compute_type(t.dtype)
    zeros = t.b.full([count, image], 0, wide)
    parts = [t.reshape(x, (count, places)) for x in (indices, t.cast(grad_output, wide))]
    flat = t.operator(
        "ScatterElements", zeros, *parts, results=[Promise((count, image), wide)], axis=1, reduction="add"
    )
    return t.cast(t.reshape(flat, t.shape), t.dtype)
