"""Running sums, products and extrema along an axis."""

from __future__ import annotations

import dace
import numpy as np
import torch

from daceopt.capture.torch.aten.shape import axis_in
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import types
from daceopt.ops.families.searching import running_extremum


@translates("cumsum")
def cumsum(t: Translation, self: str, dim: int, dtype: torch.dtype | None) -> str:
    return _running(t, "CumSum", self, dim)


@translates("cumprod")
def cumprod(t: Translation, self: str, dim: int, dtype: torch.dtype | None) -> str:
    return _running(t, "CumProd", self, dim)


def _running(t: Translation, op_type: str, self: str, dim: int) -> str:
    if types.is_bool(t.dtype):
        raise Unsupported("a sum or product in bool; expected a number type")
    x = t.cast(self, t.dtype)
    if not t.shape_of(x):
        return x
    axis = t.b.constant(np.asarray(axis_in(dim, len(t.shape_of(x))), np.int64))
    return str(t.operator(op_type, x, axis))


@translates("cummax", derivative="aten")
def cummax(t: Translation, self: str, dim: int) -> tuple[str, str]:
    return _extrema(t, self, dim, True)


@translates("cummin", derivative="aten")
def cummin(t: Translation, self: str, dim: int) -> tuple[str, str]:
    return _extrema(t, self, dim, False)


def _extrema(t: Translation, self: str, dim: int, largest: bool) -> tuple[str, str]:
    if not t.shape_of(self):
        return self, t.b.full((), 0, dace.int64)
    best, places = (t.graph.add_array(t.label, p.shape, p.dtype) for p in t.promised)
    running_extremum(t.b, self, best, places, axis_in(dim, len(t.shape_of(self))), largest)
    return best, places
