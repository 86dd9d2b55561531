"""Rounding to the values of narrow types in NumPy; ``codegen/include/daceopt/narrow.h`` computes the same in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from daceopt.ir.scalar import types

Rounding = Callable[[np.ndarray], np.ndarray]


def rounding(dtype: types.DType, mode: str = "") -> Rounding:
    """The function that rounds an array to the values of ``dtype``; what it returns has a type that computes.

    The identity for a type that is not narrow. ``mode`` as in :func:`daceopt.ir.scalar.functions.cast`.
    """
    if not types.is_narrow(dtype):
        return lambda x: x
    if types.name_of(dtype) == "float8_e8m0fnu":
        return lambda x: _power_of_two(x, mode)
    storage, computed = types.to_numpy(dtype), types.to_numpy(types.compute_type(dtype))
    saturates = types.name_of(dtype).startswith("float8") and not mode

    def apply(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        if types.is_integer(dtype):
            return _wrap(x, storage).astype(computed)
        if saturates:
            limit = float(ml_dtypes.finfo(storage).max)
            x = np.clip(x.astype(np.float64), -limit, limit)
        return x.astype(storage).astype(computed)

    return apply


def _wrap(x: np.ndarray, storage: np.dtype[Any]) -> np.ndarray:
    """Towards zero, then the low bits, as integers of C are converted."""
    whole = np.nan_to_num(np.trunc(x), nan=0, posinf=0, neginf=0) if x.dtype.kind == "f" else x
    return whole.astype(np.int64).astype(storage)


def _power_of_two(x: np.ndarray, mode: str) -> np.ndarray:
    """Round to 2**-127 ... 2**127 by the bits of float32: the fraction of x decides whether the exponent goes up."""
    direction, _, unbounded = mode.partition("_")
    codes = np.asarray(x, np.float32).view(np.uint32).astype(np.int64)
    exponent, fraction = (codes >> 23) & 0xFF, codes & 0x7FFFFF
    up = {
        "down": np.zeros_like(codes),
        "nearest": (fraction > 0x400000) | ((fraction == 0x400000) & (exponent > 0)),
        "up": fraction > 0,
        "": fraction > 0,
    }[direction].astype(np.int64)
    if not unbounded:
        up[exponent == 0xFE] = 0
    code = np.where(exponent == 0xFF, 0xFF, exponent + up).astype(np.uint8)
    return code.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
