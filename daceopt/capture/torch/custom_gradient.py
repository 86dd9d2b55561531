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

from daceopt.capture.torch.functional_values import plain, snapshot
from daceopt.scoped import scoped
from daceopt.torch_internals.functional_tensors import set_value


@dataclass(frozen=True, eq=False)
class Backward:
    """The backward graph of one use of a custom function, called with the gradients of its results, then ``saved``.

    ``others``: per result None where the marker has it, else the ``Slot`` of what is like its gradient, which is zero.
    ``operands``: positions of the tensor operands among the backward graph's results. ``saved``: a ``Slot`` or
    ``ResultSlot`` for a tensor that the marker has, a ``NumberSlot`` for a number that only a call knows, else the
    value itself.
    """

    graph: fx.GraphModule
    others: tuple[Slot | None, ...]
    operands: tuple[int, ...]
    saved: tuple[Any, ...]

    def arguments(self, grads: Sequence[object], results: Sequence[object], saved: Sequence[object]) -> list[Any]:
        """What the graph is called with, given the marker's results, their gradients and the saved tensors."""
        marked = iter(grads)
        incoming = [next(marked) if k is None else torch.zeros_like(saved[k]) for k in self.others]
        return [*incoming, *(self._keep(s, results, saved) for s in self.saved)]

    @staticmethod
    def _keep(value: object, results: Sequence[object], saved: Sequence[Any]) -> object:
        if isinstance(value, Slot):
            return saved[value]
        if isinstance(value, NumberSlot):
            return saved[value].item()
        return results[value] if isinstance(value, ResultSlot) else value


class Slot(int):
    """Position of a tensor among the marker's saved ones."""


class ResultSlot(int):
    """Position of a tensor among the marker's results."""


class NumberSlot(int):
    """Position, among the marker's saved tensors, of one that holds a number."""


BACKWARDS = "daceopt_backwards"  # where the graph of a gradient keeps the backward graphs of its markers
_collected: ContextVar[list[Backward]] = ContextVar("backward graphs of the trace that runs")


@contextmanager
def collect() -> Iterator[list[Backward]]:
    """The backward graphs of the custom functions traced inside; a marker knows its own by position."""
    with scoped(_collected, list[Backward]()) as backwards:
        yield backwards


@torch.library.custom_op("daceopt::with_gradient", mutates_args=())
def with_gradient(
    results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], number: int
) -> list[torch.Tensor]:
    """``results`` as they are; their gradient is that of the custom function ``number`` of the trace."""
    return [r.clone() for r in results]


@with_gradient.register_fake
def _(results: Any, operands: object, saved: object, number: int) -> list[torch.Tensor]:
    return [torch.empty_like(r) for r in results]


@torch.library.custom_op("daceopt::stop_gradient", mutates_args=())
def stop_gradient(value: torch.Tensor) -> torch.Tensor:
    """``value``; what ``detach`` says, told from those that autograd itself leaves in a trace."""
    return value.clone()


@stop_gradient.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


def apply(fwd: fx.Interpreter, bwd: fx.GraphModule, *args: Any, **kwargs: Any) -> object:
    """What ``autograd_function_apply`` means, while it is traced; ``fwd`` runs the forward graph. What it has marked
    dirty is its result from then on."""
    dirty, passed = kwargs.get("dirty_idx") or (), args
    detached = [_detach(a) for a in args]
    if dirty:
        args = tuple(snapshot(a) for a in args)
    result, saved = fwd.run(*detached)
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    changed = {k: next(a for a, d in zip(passed, detached) if d is results[k]) for k in dirty}
    fixed = set(kwargs.get("non_differentiable_idx") or ())
    flags = tuple(k not in fixed and _has_gradient(r) for k, r in enumerate(results))
    operands = tuple(k for k, a in enumerate(args) if isinstance(a, torch.Tensor))
    own = [r for r, flag in zip(results, flags) if flag]
    tensors: list[torch.Tensor] = []
    slots = tuple(_slot(s, own, [(d, args[k]) for k, d in enumerate(detached)], tensors) for s in saved)
    others = tuple(None if flag else Slot(_add(tensors, r)) for r, flag in zip(results, flags))
    backward = Backward(bwd, others, operands, slots)
    marked = iter(mark([r.detach() for r in own], [args[k] for k in operands], tensors, backward))
    results = [next(marked) if flag else r for r, flag in zip(results, flags)]
    for k, operand in changed.items():
        set_value(operand, plain(results[k]))
        results[k] = operand
    return results[0] if isinstance(result, torch.Tensor) else type(result)(results)


def _detach(value: object) -> object:
    holds_number = getattr(value, "item_memo", None) is not None  # and would not be known to
    return value.detach() if isinstance(value, torch.Tensor) and not holds_number else value


def again(
    backwards: Sequence[Backward], results: object, operands: object, saved: object, number: int
) -> list[torch.Tensor]:
    """The marker of an earlier trace in this one."""
    return mark(results, operands, saved, backwards[number])


def mark(results: Any, operands: Any, saved: Any, backward: Backward) -> list[torch.Tensor]:
    """``results`` as they are, with this rule for their gradients."""
    own = _collected.get()
    own.append(backward)
    return list(torch.ops.daceopt.with_gradient(*map(list, (results, operands, saved)), len(own) - 1))


def as_gradient_of(value: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """``value``, whose gradient is that of ``before``."""
    body = fx.Graph()
    body.output([body.placeholder("gradient")])
    return mark([value.detach()], [before], [], Backward(fx.GraphModule({}, body), (None,), (0,), ()))[0]


def _slot(
    value: object, results: Sequence[object], arguments: Sequence[tuple[object, object]], tensors: list[Any]
) -> object:
    """Where the marker has a saved value. What is an operand or a result is that itself, through which the derivative
    of the derivative goes on, as in PyTorch; through what was computed in between it does not."""
    if isinstance(value, torch.SymFloat):
        return NumberSlot(_add(tensors, torch.scalar_tensor(value, dtype=torch.float64)))
    if not isinstance(value, torch.Tensor):
        return value
    for k, r in enumerate(results):
        if r is value:
            return ResultSlot(k)
    argument = next((a for detached, a in arguments if detached is value), None)
    return Slot(_add(tensors, value if argument is None else argument, detach=argument is None))


def _add(tensors: list[torch.Tensor], value: Any, detach: bool = True) -> int:
    tensors.append(value.detach() if detach else value)
    return len(tensors) - 1


def _has_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
