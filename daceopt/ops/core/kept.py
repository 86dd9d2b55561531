"""Optional outputs that a forward operator leaves for its gradient rule (``registry.keeps``)."""

from __future__ import annotations

from collections.abc import Sequence

from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Shape
from daceopt.ops.core import values
from daceopt.ops.core.registry import Names


def deliver(b: Builder, value: str, out: str | None) -> None:
    """Write an optional output in its own type and shape."""
    if out is not None:
        b.cast(b.reshape(value, b.graph.shape(out)), b.graph.dtype(out), out=out)


def kept_statistics(
    b: Builder, x: str, outputs: Names, positions: Sequence[int], shape: Shape
) -> tuple[str, ...] | None:
    """What the forward left as outputs of the statistics of ``x``, in ``shape``; None where one is missing or was
    rounded."""
    names = [values.at(outputs, k) for k in positions]
    if any(n is None or b.graph.dtype(n) != types.compute_type(b.graph.dtype(x)) for n in names):
        return None
    return tuple(b.reshape(n, shape) for n in names if n is not None)


def surely_left(b: Builder, outputs: Names, positions: Sequence[int], shape: Shape) -> tuple[str, ...]:
    """The same for ``registry.again``, whose nodes leave all that they could."""
    return tuple(b.reshape(require(outputs, k), shape) for k in positions)
