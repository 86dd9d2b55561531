"""Softmax and its logarithm."""

from __future__ import annotations

from daceopt.capture.torch.aten.shape import axis_in
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation


@translates("_softmax")
def softmax(t: Translation, self: str, dim: int, half_to_float: bool) -> str:
    return _along(t, "Softmax", self, dim)


@translates("_log_softmax")
def log_softmax(t: Translation, self: str, dim: int, half_to_float: bool) -> str:
    return _along(t, "LogSoftmax", self, dim)


def _along(t: Translation, op_type: str, x: str, dim: int) -> str:
    shape = t.shape_of(x)
    x = t.cast(x, t.dtype)
    if shape:
        return str(t.operator(op_type, x, axis=axis_in(dim, len(shape))))
    vector = t.reshape(x, (1,))
    return t.reshape(t.operator(op_type, vector, results=[t.promised[0]._replace(shape=(1,))], axis=0), ())
