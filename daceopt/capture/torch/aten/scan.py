"""Running sums, products and extrema along an axis."""

from __future__ import annotations

import dace
import numpy as np

from daceopt.capture.torch.aten.shape import axis_in
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import types
from daceopt.ops.families.searching import running_extremum


@translates("cumsum", "cumprod")
def running(t: Translation, self: str, dim: int, dtype: object) -> str:
    if types.is_bool(t.dtype):
        raise Unsupported("a sum or product in bool; expected a number type")
    x = t.cast(self, t.dtype)
    if not t.shape_of(x):
        return x
    axis = t.b.constant(np.asarray(axis_in(dim, len(t.shape_of(x))), np.int64))
    return t.operator("CumSum" if t.label == "cumsum" else "CumProd", x, axis)


@translates("cummax", "cummin", derivative="aten")
def extrema(t: Translation, self: str, dim: int) -> tuple[str, str]:
    if not t.shape_of(self):
        return self, t.b.full((), 0, dace.int64)
    best, places = (t.graph.add_array(t.label, p.shape, p.dtype) for p in t.promised)
    running_extremum(t.b, self, best, places, axis_in(dim, len(t.shape_of(self))), t.label == "cummax")
    return best, places
