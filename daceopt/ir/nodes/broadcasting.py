"""What undoes a broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType


def sum_to(
    b: Builder, fn: Any, *arrays: str, shape: Sequence[Dim], dtype: DType | None = None, label: str | None = None
) -> str:
    """``fn`` of the arrays (None: the array itself), which have one shape, summed over the dimensions along which
    ``shape`` was broadcast to it."""
    own = b.graph.shape(arrays[0])
    lead = len(own) - len(shape)
    axes = [*range(lead), *(lead + k for k, n in enumerate(shape) if n == 1 and not same(own[lead + k], 1))]
    x = arrays[0]
    if axes or fn is not None:
        x = b.reduce("sum", fn, *arrays, axes=axes, dtype=dtype, label=label)
    return x if tuple(b.graph.shape(x)) == tuple(shape) else str(b.reshape(x, shape))
