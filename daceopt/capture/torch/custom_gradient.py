"""A custom ``autograd.Function`` in a trace: its forward is traced, its backward becomes the gradient of a marker.

The forward reads detached operands. ``daceopt::with_gradient`` then gives its results the operands as inputs again,
with the backward graph as the rule; ``derivative.py`` says what the rule does with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from daceopt.errors import Unsupported


@dataclass(frozen=True, eq=False)
class Backward:
    """The backward graph of one use of a custom function, called with the gradients of its results, then ``saved``.

    ``others``: per result None where the marker has it, else the (fake) result, whose gradient is zero. ``operands``:
    positions of the tensor operands among the backward graph's results. ``saved``: a ``Slot`` for a tensor that the
    marker has, else the value itself.
    """

    graph: fx.GraphModule
    others: tuple[Any, ...]
    operands: tuple[int, ...]
    saved: tuple[Any, ...]


class Slot(int):
    """Position of a tensor among the marker's saved ones."""


_collected: ContextVar[list[Backward]] = ContextVar("backward graphs of the trace that runs")


@contextmanager
def collected() -> Iterator[list[Backward]]:
    """The backward graphs of the custom functions traced inside; a marker knows its own by position."""
    found: list[Backward] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


@torch.library.custom_op("daceopt::with_gradient", mutates_args=())
def with_gradient(
    results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], number: int
) -> list[torch.Tensor]:
    """``results`` as they are; their gradient is that of the custom function ``number`` of the trace."""
    return [r.clone() for r in results]


@with_gradient.register_fake
def _(results: Any, operands: Any, saved: Any, number: int) -> list[torch.Tensor]:
    return [torch.empty_like(r) for r in results]


@torch.library.custom_op("daceopt::stop_gradient", mutates_args=())
def stop_gradient(value: torch.Tensor) -> torch.Tensor:
    """``value``; what ``detach`` says, told from those that autograd itself leaves in a trace."""
    return value.clone()


@stop_gradient.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


def apply(fwd: fx.GraphModule, bwd: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """What ``autograd_function_apply`` means, while it is traced. Raises Unsupported for functions that change their
    operands."""
    if kwargs.get("dirty_idx"):
        raise Unsupported("a custom autograd.Function that calls ctx.mark_dirty")
    result, saved = fx.Interpreter(fwd).run(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args))
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    fixed = set(kwargs.get("non_differentiable_idx") or ())
    flags = tuple(k not in fixed and _has_gradient(r) for k, r in enumerate(results))
    operands = tuple(k for k, a in enumerate(args) if isinstance(a, torch.Tensor))
    tensors = [s for s in saved if isinstance(s, torch.Tensor)]
    slots = iter(range(len(tensors)))
    kept = tuple(Slot(next(slots)) if isinstance(s, torch.Tensor) else s for s in saved)
    backwards = _collected.get()
    others = tuple(None if flag else r for r, flag in zip(results, flags))
    backwards.append(Backward(bwd, others, operands, kept))
    marked = iter(
        torch.ops.daceopt.with_gradient(
            [r.detach() for r, flag in zip(results, flags) if flag],
            [args[k] for k in operands],
            [t.detach() for t in tensors],
            len(backwards) - 1,
        )
    )
    results = [next(marked) if flag else r for r, flag in zip(results, flags)]
    return results[0] if isinstance(result, torch.Tensor) else type(result)(results)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
