"""Sums that undo broadcasting and join contributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from daceopt.ir.affine import same
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim


def total(b: Builder, parts: Sequence[str], dtype: Any) -> str:
    """The sum of arrays of one shape as ``dtype``, in one pass over all of them.

    Contributions may be of the type in which ``dtype`` is computed: they are added in it, and the sum is rounded once.
    """
    if len(parts) == 1 and b.graph.dtype(parts[0]) == dtype:
        return parts[0]
    return str(b.elementwise(lambda *terms: sympy.Add(*terms), *parts, dtype=dtype, label="add_gradients"))


def sum_to(b: Builder, x: str, shape: Sequence[Dim]) -> str:
    """``x`` summed over the dimensions along which ``shape`` was broadcast to the shape of ``x``."""
    own = b.graph.shape(x)
    lead = len(own) - len(shape)
    stretched = [lead + k for k, n in enumerate(shape) if n == 1 and not same(own[lead + k], 1)]
    axes = [*range(lead), *stretched]
    if axes:
        x = b.reduce("sum", None, x, axes=axes, label="sum_gradient")
    return x if tuple(b.graph.shape(x)) == tuple(shape) else b.reshape(x, shape)
