"""Sums that undo broadcasting and join contributions."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from daceopt.autodiff.affine import same
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim


def total(b: Builder, parts: Sequence[str]) -> str:
    """The sum of arrays of one shape, in one pass over all of them."""
    if len(parts) == 1:
        return parts[0]
    return str(b.elementwise(lambda *terms: sympy.Add(*terms), *parts, label="add_gradients"))


def sum_to(b: Builder, x: str, shape: Sequence[Dim]) -> str:
    """``x`` summed over the dimensions along which ``shape`` was broadcast to the shape of ``x``."""
    own = b.graph.shape(x)
    lead = len(own) - len(shape)
    stretched = [lead + k for k, n in enumerate(shape) if n == 1 and not same(own[lead + k], 1)]
    axes = [*range(lead), *stretched]
    if axes:
        x = b.reduce("sum", None, x, axes=axes, label="sum_gradient")
    return x if tuple(b.graph.shape(x)) == tuple(shape) else b.reshape(x, shape)
