"""ONNX forms of the PyTorch operators that the stock exporter translates wrongly for training, or with needless shape
arithmetic.

Each function is called while the exporter records: tensors are ONNX values with known dtype and rank, everything else
is Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  numpy learns bfloat16
import numpy as np
import onnx
import onnx_ir as ir
import onnxscript
import torch
from onnxscript import opset20 as op

from daceopt.capture import recurrent
from daceopt.capture.constants import Value, constant, filled, integer, integers, scalar

OPSET = 20
DOMAIN = "daceopt"

_SMALL = 1 << 16  # ranges up to this many elements become constants


_STOP_GRADIENT = onnx.defs.OpSchema(
    "StopGradient",
    DOMAIN,
    1,
    inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
    outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
    type_constraints=[
        ("T", ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"], "real numbers")
    ],
)
_stop_gradient = onnxscript.values.Op(onnxscript.values.Opset(DOMAIN, 1), "StopGradient", _STOP_GRADIENT)


def stop_gradient_function() -> onnx.FunctionProto:
    """Body of ``daceopt::StopGradient``: the identity whose gradient is zero (``Tensor.detach``, ``torch.no_grad``)."""
    body = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    return onnx.helper.make_function(DOMAIN, "StopGradient", ["x"], ["y"], body, [onnx.helper.make_opsetid("", OPSET)])


def detach(x: Value) -> Value:
    """``StopGradient`` for real numbers; others have no gradient to stop."""
    return _stop_gradient(x) if x.dtype.is_floating_point() else op.Identity(x)


def hardtanh(x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    """A Clip but for the gradient at the bounds, where ReLU6 of dead channels stands: zero here, one for ``clamp``."""
    low, high = scalar(min_val, x), scalar(max_val, x)
    return op.Where(op.LessOrEqual(x, low), low, op.Where(op.GreaterOrEqual(x, high), high, x))


def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x (..., K) @ weight (N, K)^T + bias (N), batch dimensions kept."""
    if len(weight.shape) == 2:
        weight = op.Transpose(weight, perm=[1, 0])
    product = op.MatMul(x, weight)
    return product if bias is None else op.Add(product, bias)


def native_dropout(x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    """The result and the mask of kept elements, each of x's shape."""
    if train is False or p == 0.0:
        return op.Identity(x), op.Expand(constant(np.array(True)), op.Shape(x))
    if p == 1.0:  # ONNX would scale by 1 / (1 - p)
        shape = op.Shape(x)
        return op.Expand(scalar(0, x), shape), op.Expand(constant(np.array(False)), shape)
    result, mask = op.Dropout(x, constant(np.array(p, np.float32)), constant(np.array(True)))
    return result, mask


def batch_norm_functional(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """x (N, C, ...) normalised over all but axis 1; also the saved mean and inverse deviation, and the new running
    statistics (C).
    """
    weight, bias = _affine(x, weight, bias, mean.dtype)
    if not training:
        y = op.BatchNormalization(x, weight, bias, mean, var, epsilon=eps)
        return y, *_saved_empty(x), op.Identity(mean), op.Identity(var)
    # The old variance is read before the node whose implementations may write the new one in its place.
    kept = op.Mul(var, scalar(1.0 - momentum, var))
    y, new_mean, biased = op.BatchNormalization(
        x, weight, bias, mean, var, epsilon=eps, momentum=1.0 - momentum, training_mode=1
    )
    return y, *_saved(x, eps), new_mean, _unbiased(x, kept, biased, var.dtype)


def batch_norm_no_stats(
    x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, Value, Value]:
    """Batch normalisation that always uses the batch's statistics and keeps none."""
    channels = int(x.shape[1])
    weight, bias = _affine(x, weight, bias, x.dtype)
    mean, var = filled(0, channels, weight.dtype), filled(1, channels, weight.dtype)
    y, _, _ = op.BatchNormalization(x, weight, bias, mean, var, epsilon=eps, training_mode=1)
    return y, *_saved(x, eps)


def batch_norm_no_training(
    x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, momentum: float, eps: float
) -> tuple[Value, Value, Value]:
    """Batch normalisation with fixed statistics."""
    weight, bias = _affine(x, weight, bias, mean.dtype)
    return op.BatchNormalization(x, weight, bias, mean, var, epsilon=eps), *_saved_empty(x)


def batch_norm(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    """``aten.batch_norm`` as it stays in graphs where it changes no buffer."""
    if training or mean is None:
        return batch_norm_no_stats(x, weight, bias, True, momentum, eps)[0]
    return batch_norm_no_training(x, weight, bias, mean, var, momentum, eps)[0]


def _affine(x: Value, weight: Value | None, bias: Value | None, dtype: ir.DataType) -> tuple[Value, Value]:
    channels = int(x.shape[1])
    weight = filled(1, channels, dtype) if weight is None else weight
    return weight, filled(0, channels, weight.dtype) if bias is None else bias


def _unbiased(x: Value, kept: Value, biased: Value, dtype: ir.DataType) -> Value:
    """PyTorch's running variance from ONNX's: what the batch adds counts n / (n - 1) times.

    biased = kept + m v, with kept = (1 - m) var, and wanted = kept + m v n / (n - 1) = biased + (biased - kept) / (n
    - 1)
    """
    extents = [x.shape[axis] for axis in range(len(x.shape)) if axis != 1]
    added = op.Sub(biased, kept)
    if all(isinstance(extent, int) for extent in extents):
        factor = constant(np.array(1 / (math.prod(extents) - 1), dtype.numpy()))
        return op.Add(biased, op.Mul(added, factor))
    count = op.Div(op.Size(x), constant(np.array(x.shape[1], np.int64)))
    return op.Add(biased, op.Div(added, op.Cast(op.Sub(count, integer(1)), to=dtype)))


def _saved(x: Value, eps: float) -> tuple[Value, Value]:
    """Mean and inverse standard deviation (C) of the batch; removed from the model where nobody reads them."""
    axes = integers([a for a in range(len(x.shape)) if a != 1])
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = op.Sub(x, mean)
    variance = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=0)
    deviation = op.Sqrt(op.Add(variance, scalar(eps, x)))
    return op.Squeeze(mean, axes), op.Reciprocal(deviation)


def _saved_empty(x: Value) -> tuple[Value, Value]:
    """Without batch statistics PyTorch returns empty tensors in their place."""
    return filled(0, 0, x.dtype), filled(0, 0, x.dtype)


def attention(
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(scale query @ key^T + mask) @ value, with query (..., L, E), key (..., S, E), value (..., S, V).

    A row whose mask admits nothing gives zero (and a zero gradient), as in PyTorch.
    """
    rank = len(key.shape)
    transposed = [*range(rank - 2), rank - 1, rank - 2]
    causal = _causal(query, key) if is_causal else None
    if enable_gqa:
        key, value = (_repeat_heads(t, int(query.shape[-3])) for t in (key, value))
    scale = 1.0 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    scores = op.Mul(op.MatMul(query, op.Transpose(key, perm=transposed)), scalar(scale, query))
    if causal is not None:
        scores = op.Where(causal, scores, scalar(-math.inf, query))  # every row sees at least its first key
    weights = op.Softmax(scores, axis=-1) if attn_mask is None else _masked_softmax(scores, attn_mask, query)
    if dropout_p > 0.0:
        weights, _ = native_dropout(weights, dropout_p, True)
    return op.MatMul(weights, value)


def _masked_softmax(scores: Value, mask: Value, like: Value) -> Value:
    last = integers([-1])
    zero, minus_infinity = scalar(0, like), scalar(-math.inf, like)
    if mask.dtype == ir.DataType.BOOL:
        alive = op.Cast(op.ReduceMax(op.Cast(mask, to=ir.DataType.INT32), last, keepdims=1), to=ir.DataType.BOOL)
        scores = op.Where(mask, scores, op.Where(alive, minus_infinity, zero))
    else:
        alive = op.Greater(op.ReduceMax(mask, last, keepdims=1), minus_infinity)
        scores = op.Add(scores, op.Where(alive, mask, zero))
    return op.Where(alive, op.Softmax(scores, axis=-1), zero)


def _causal(query: Value, key: Value) -> Value:
    rows, columns = query.shape[-2], key.shape[-2]
    if isinstance(rows, int) and isinstance(columns, int):
        return constant(np.tril(np.ones((rows, columns), np.bool_)))
    index = [op.Range(integer(0), op.Squeeze(op.Shape(t, start=-2, end=-1)), integer(1)) for t in (query, key)]
    return op.GreaterOrEqual(op.Unsqueeze(index[0], integers([1])), index[1])


def _repeat_heads(x: Value, heads: int) -> Value:
    """(..., H, S, E) -> (..., heads, S, E), each head repeated in place."""
    rank, own = len(x.shape), int(x.shape[-3])
    if own == heads:
        return x
    repeat = constant(np.array([1] * (rank - 2) + [heads // own, 1, 1], np.int64))
    wide = op.Expand(op.Unsqueeze(x, integers([rank - 2])), repeat)
    target = [0] * (rank - 3) + [heads, -1, int(x.shape[-1])]
    return op.Reshape(wide, constant(np.array(target, np.int64)))


def view(x: Value, sizes: list[Any]) -> Value:
    """``sizes`` are ints (one may be -1) and, for dynamic dimensions, scalar values."""
    if all(isinstance(size, int) for size in sizes):
        return op.Reshape(x, constant(np.array(sizes, np.int64)), allowzero=int(0 in sizes))
    return op.Reshape(x, _vector(sizes), allowzero=1)


def expand(x: Value, sizes: list[Any], implicit: bool = False) -> Value:
    """Broadcast to ``sizes``; -1 keeps the extent, which ONNX writes as 1."""
    kept = [1 if isinstance(size, int) and size == -1 else size for size in sizes]
    if all(isinstance(size, int) for size in kept):
        return op.Expand(x, constant(np.array(kept, np.int64)))
    return op.Expand(x, _vector(kept))


def _vector(sizes: list[Any]) -> Value:
    first = integers([0])
    parts = [integers([s]) if isinstance(s, int) else op.Unsqueeze(s, first) for s in sizes]
    return op.Concat(*parts, axis=0)


def arange(end: Any, **options: Any) -> Value:
    """``torch.arange(end)``."""
    return arange_start_step(0, end, 1, **options)


def arange_start(start: Any, end: Any, **options: Any) -> Value:
    """``torch.arange(start, end)``."""
    return arange_start_step(start, end, 1, **options)


def arange_start_step(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_: Any) -> Value:
    """``torch.arange(start, end, step)``: a constant when the bounds are numbers, else a Range."""
    bounds = (start, end, step)
    numbers = [b for b in bounds if isinstance(b, int | float)]
    if dtype is None or dtype == -1:
        floating = any(isinstance(b, float) for b in numbers)
        dtype = _onnx_dtype(torch.get_default_dtype()) if floating else ir.DataType.INT64
    dtype = ir.DataType(dtype)
    if len(numbers) == len(bounds) and (end - start) / step <= _SMALL:
        return constant(torch.arange(start, end, step, dtype=_torch_dtype(dtype)))
    parts = [constant(np.array(b, dtype.numpy())) if b in numbers else op.Cast(b, to=dtype) for b in bounds]
    return op.Range(*parts)


def _onnx_dtype(dtype: torch.dtype) -> ir.DataType:
    return ir.tensor(torch.empty(0, dtype=dtype)).dtype


def _torch_dtype(dtype: ir.DataType) -> torch.dtype:
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    return next(d for d in (*integers, *floats) if _onnx_dtype(d) == dtype)


def roll(x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """``torch.roll``: the two parts of each axis change places."""
    if not dims:
        flat = roll(op.Reshape(x, integers([-1])), shifts, (0,))
        return op.Reshape(flat, op.Shape(x))
    for shift, axis in zip(shifts, dims, strict=True):
        x = _rolled(x, shift, axis)
    return x


def _rolled(x: Value, shift: int, axis: int) -> Value:
    extent = x.shape[axis] if x.shape is not None else None
    if extent == 0:
        return x
    if not isinstance(extent, int):
        raise ValueError("torch.roll along a dynamic dimension")
    last, axes = integers([np.iinfo(np.int64).max]), integers([axis])
    cut = integers([-shift % extent])
    rolled = op.Concat(op.Slice(x, cut, last, axes), op.Slice(x, integers([0]), cut, axes), axis=axis)
    rolled.shape, rolled.dtype = x.shape, x.dtype  # the recorder does not infer them
    return rolled


def table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """PyTorch operator -> translation, for ``torch.onnx.export(custom_translation_table=...)``."""
    aten = torch.ops.aten
    return {
        aten.detach.default: detach,
        aten.linear.default: linear,
        aten.hardtanh.default: hardtanh,
        aten.native_dropout.default: native_dropout,
        aten._native_batch_norm_legit_functional.default: batch_norm_functional,
        aten._native_batch_norm_legit.no_stats: batch_norm_no_stats,
        aten._native_batch_norm_legit_no_training.default: batch_norm_no_training,
        aten.batch_norm.default: batch_norm,
        aten.scaled_dot_product_attention.default: attention,
        aten.view.default: view,
        aten.reshape.default: view,
        aten._unsafe_view.default: view,
        aten.expand.default: expand,
        aten.arange.default: arange,
        aten.arange.start: arange_start,
        aten.arange.start_step: arange_start_step,
        aten.roll.default: roll,
        aten.lstm.input: recurrent.lstm,
        aten.gru.input: recurrent.gru,
        aten.rnn_tanh.input: recurrent.rnn_tanh,
        aten.rnn_relu.input: recurrent.rnn_relu,
    }
