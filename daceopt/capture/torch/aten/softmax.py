"""Softmax and its logarithm."""

from __future__ import annotations

import torch

from daceopt.capture.torch.aten.reduction import reduce
from daceopt.capture.torch.aten.shape import axis_in
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.ir.scalar import scalar


@translates("_softmax", "_log_softmax")
def softmax(t: Translation, self: str, dim: int, half_to_float: bool) -> str:
    return _along(t, "Softmax" if t.label == "softmax" else "LogSoftmax", self, dim)


@translates("_safe_softmax", derivative="aten")
def safe_softmax(t: Translation, self: str, dim: int, dtype: torch.dtype | None) -> str:
    """Rows of -inf are 0; PyTorch's derivative takes these zeros, so that it is 0 there, too."""
    x = t.cast(self, t.dtype)
    axes = [axis_in(dim, len(t.shape))] if t.shape else []
    top = reduce(t, "ReduceMax", x, axes, keepdim=True)
    hidden = -scalar.infinity()
    return t.kernel(lambda y, m: scalar.select(scalar.eq(m, hidden), 0, y), _along(t, "Softmax", x, dim), top)


def _along(t: Translation, op_type: str, x: str, dim: int) -> str:
    shape = t.shape_of(x)
    x = t.cast(x, t.dtype)
    if shape:
        return t.operator(op_type, x, axis=axis_in(dim, len(shape)))
    vector = t.reshape(x, (1,))
    return t.reshape(t.operator(op_type, vector, results=[t.promised[0]._replace(shape=(1,))], axis=0), ())
