"""Reductions in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

UFUNC: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def identity(kind: str, dtype: np.dtype[Any]) -> Any:
    """The value from which a reduction over elements of ``dtype`` starts."""
    if kind in ("sum", "prod"):
        return dtype.type(kind == "prod")
    if dtype.kind == "f":
        return dtype.type(-np.inf if kind == "max" else np.inf)
    if dtype.kind == "b":
        return kind == "min"
    return np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max
