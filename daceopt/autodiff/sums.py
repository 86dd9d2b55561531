"""Sums that join contributions."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.types import DType


def total(b: Builder, parts: Sequence[str], dtype: DType) -> str:
    """The sum of arrays of one shape as ``dtype``, in one pass over all of them.

    Contributions may be of the type in which ``dtype`` is computed: they are added in it, and the sum is rounded once.
    """
    if len(parts) == 1 and b.graph.dtype(parts[0]) == dtype:
        return parts[0]
    return str(b.elementwise(lambda *terms: sympy.Add(*terms), *parts, dtype=dtype, label="add_gradients"))
