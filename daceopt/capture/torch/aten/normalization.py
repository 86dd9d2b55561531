"""Normalizations over trailing axes, channels and groups."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from daceopt.capture.torch.calls import NumberArray, Promise
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.families.moments import moments
from daceopt.ops.families.reduction import element_count


def _or_full(t: Translation, name: str | None, value: float, shape: Sequence[Dim], dtype: DType) -> str:
    """An optional operand, or an array of one value in its place."""
    return t.b.full(shape, value, types.compute_type(dtype)) if name is None else name


def _statistics(t: Translation, x: str, axes: Sequence[int], eps: float) -> tuple[str, str]:
    """What PyTorch keeps for the backward: mean and inverse deviation over ``axes``; gone again unless it is read."""
    b = t.b
    centre, variance = moments(b, x, axes)
    inverse = b.elementwise(lambda v: 1 / sympy.sqrt(v + sympy.Float(eps, 17)), variance)
    return tuple(t.cast(t.reshape(n, p.shape), p.dtype) for n, p in zip((centre, inverse), t.promised[1:3]))  # type: ignore[return-value]


# -------------------------------------------------------------------- over trailing axes


@translates("native_layer_norm")
def layer_norm(
    t: Translation, input: str, normalized_shape: list[Dim], weight: str | None, bias: str | None, eps: float
) -> tuple[str, ...]:
    scale = _or_full(t, weight, 1, (1,), t.dtype)
    return t.operators("LayerNormalization", input, scale, bias, axis=-len(normalized_shape), epsilon=eps)


@translates("rms_norm")
def rms_norm(t: Translation, input: str, normalized_shape: list[Dim], weight: str | None, eps: float | None) -> str:
    """Without ``eps``, the distance from 1 to the next number of the type in which it is computed."""
    if eps is None:
        eps = torch.finfo(types.to_torch(types.compute_type(t.dtype_of(input)))).eps
    scale = _or_full(t, weight, 1, (1,), t.dtype)
    return t.operator("RMSNormalization", input, scale, axis=-len(normalized_shape), epsilon=eps)


# -------------------------------------------------------------------- over batches


@translates("_native_batch_norm_legit_functional")
def batch_norm_functional(
    t: Translation,
    input: str,
    weight: str | None,
    bias: str | None,
    running_mean: str,
    running_var: str,
    training: bool,
    momentum: float | NumberArray,
    eps: float,
) -> tuple[str, ...]:
    """Also the new running statistics: copies of the old ones outside of training."""
    if not training:
        return *batch_norm_inference(t, input, weight, bias, running_mean, running_var, momentum, eps), *(
            t.cast(t.b.copy(n), p.dtype) for n, p in zip((running_mean, running_var), t.promised[3:])
        )
    decay = 0.0 if isinstance(momentum, NumberArray) else 1.0 - momentum
    scale, shift = _affine(t, input, weight, bias)
    y, new_mean, biased = t.operators(
        "BatchNormalization",
        *(input, scale, shift, running_mean, running_var),
        results=[t.promised[0], *(p._replace(dtype=types.compute_type(p.dtype)) for p in t.promised[3:])],
        training_mode=1,
        momentum=decay,
        epsilon=eps,
    )
    new_var = _unbiased_variance(t, input, running_var, biased, decay)
    if isinstance(momentum, NumberArray):  # ``new_mean`` and ``new_var`` are the batch's own
        new_mean = _move_statistic(t, running_mean, new_mean, momentum)
        new_var = _move_statistic(t, running_var, new_var, momentum)
    return y, *_batch_statistics(t, input, eps), t.cast(new_mean, t.promised[3].dtype), new_var


def _move_statistic(t: Translation, old: str, batch: str, momentum: str) -> str:
    """A running statistic that has moved towards that of the batch."""
    dtype = t.dtype_of(batch)
    share = t.array(momentum, types.compute_type(dtype))
    return str(t.b.elementwise(lambda r, v, m: r + (v - r) * m, old, batch, share, dtype=dtype))


def _unbiased_variance(t: Translation, x: str, old: str, biased: str, decay: float) -> str:
    """PyTorch moves the running variance towards the unbiased variance of the batch, ONNX towards the biased one."""
    count = element_count(t.graph, x, _batch_axes(t, x))
    dtype, promise = types.compute_type(t.promised[4].dtype), t.promised[4]
    fewer = scalar.cast(count - 1, dtype) if count != 1 else scalar.cast(scalar.infinity(), dtype) * 0
    out = t.graph.add_array("running_var", promise.shape, promise.dtype)
    factor = sympy.Float(decay, 17)
    return str(t.b.elementwise(lambda v, w: w + (w - v * factor) / fewer, old, biased, out=out, dtype=promise.dtype))


def _batch_axes(t: Translation, x: str) -> tuple[int, ...]:
    return tuple(k for k in range(len(t.shape_of(x))) if k != 1)


def _batch_statistics(t: Translation, x: str, eps: float) -> tuple[str, str]:
    return _statistics(t, x, _batch_axes(t, x), eps)


def _affine(t: Translation, x: str, weight: str | None, bias: str | None) -> tuple[str, str]:
    channels = t.shape_of(x)[1]
    return _or_full(t, weight, 1, (channels,), t.dtype), _or_full(t, bias, 0, (channels,), t.dtype)


@translates("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    t: Translation, input: str, weight: str | None, bias: str | None, training: bool, momentum: float, eps: float
) -> tuple[str, ...]:
    """The batch's own statistics, and nothing is kept of them."""
    scale, shift = _affine(t, input, weight, bias)
    channels = t.shape_of(input)[1]
    zero, one = (_or_full(t, None, value, (channels,), t.dtype) for value in (0, 1))
    operands = (input, scale, shift, zero, one)
    unread = Promise((channels,), types.compute_type(t.dtype))
    y, _, _ = t.operators(
        "BatchNormalization", *operands, results=[t.promised[0], unread, unread], training_mode=1, epsilon=eps
    )
    return y, *_batch_statistics(t, input, eps)


@translates("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    t: Translation,
    input: str,
    weight: str | None,
    bias: str | None,
    running_mean: str,
    running_var: str,
    momentum: float,
    eps: float,
) -> tuple[str, ...]:
    """Fixed statistics."""
    scale, shift = _affine(t, input, weight, bias)
    y = t.operator(
        "BatchNormalization", input, scale, shift, running_mean, running_var, results=t.promised[:1], epsilon=eps
    )
    return y, *(t.b.full(p.shape, 0, p.dtype) for p in t.promised[1:3])


# -------------------------------------------------------------------- over groups of channels


@translates("native_group_norm")
def group_norm(
    t: Translation,
    input: str,
    weight: str | None,
    bias: str | None,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    eps: float,
) -> tuple[str, ...]:
    scale, shift = (_or_full(t, n, value, (C,), t.dtype) for n, value in ((weight, 1), (bias, 0)))
    y = t.operator("GroupNormalization", input, scale, shift, results=t.promised[:1], num_groups=group, epsilon=eps)
    grouped = t.b.reshape(input, (N, group, C // group, *t.shape_of(input)[2:]))
    return y, *_statistics(t, grouped, range(2, len(t.shape_of(grouped))), eps)
