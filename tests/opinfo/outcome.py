"""What a call gives: results, gradients, gradients of gradients, and the buffers of its modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from tests.opinfo.entries import Call, Case

Conversion = Mapping[torch.dtype, torch.dtype]
WIDE = {torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64}
WIDE[torch.complex64] = torch.complex128
NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}


@dataclass
class Outcome:
    """Values by name, in order."""

    values: dict[str, Any] = field(default_factory=dict)

    def add(self, what: str, values: Any) -> None:
        self.values |= {f"{what} {k}": v for k, v in enumerate(pytree.tree_leaves(values))}


class Arguments:
    """The arguments of a case, made anew and converted step by step, as are types among them."""

    def __init__(self, case: Case, *steps: Conversion) -> None:
        self.call: Call = case.call()
        given = (list(self.call.args), dict(self.call.kwargs))
        leaves, spec = pytree.tree_flatten(given)
        self.leaves = [_fresh(x, steps) for x in leaves]
        self.args, self.kwargs = pytree.tree_unflatten(self.leaves, spec)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """What has a gradient."""
        for x in self.leaves:
            if isinstance(x, nn.Module):
                yield from x.parameters()
            elif isinstance(x, torch.Tensor) and x.requires_grad:
                yield x

    def buffers(self) -> list[torch.Tensor]:
        return [b for x in self.leaves if isinstance(x, nn.Module) for b in x.buffers()]


def _fresh(x: Any, steps: Sequence[Conversion]) -> Any:
    for step in steps:
        x = _converted(x, step)
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return x
    return _copy(x, x.dtype)


def _converted(x: Any, step: Conversion) -> Any:
    if isinstance(x, nn.Module):
        return x._apply(lambda t: t.to(step.get(t.dtype, t.dtype)))
    if isinstance(x, torch.dtype):
        return step.get(x, x)
    if isinstance(x, torch.Tensor) and x.layout is torch.strided and x.dtype in step:
        return _copy(x, step[x.dtype])
    return x


def _copy(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if torch._debug_has_internal_overlap(x):
        twin = x.detach().to(dtype, copy=True)
    else:
        twin = torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x.detach())
    return twin.requires_grad_(x.requires_grad)


def run(
    arguments: Arguments, order: int, fn: Callable[..., Any] | None = None, seed: int = 0, shaken: int = 0
) -> Outcome:
    """Call ``fn``, or the case's own function, and differentiate ``order`` times, by cotangents that are ``shaken``
    (if not 0, in the way of that number) in their last place."""
    torch.manual_seed(seed)
    found = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = (fn or arguments.call.fn)(*arguments.args, **arguments.kwargs)
        found.add("result", results)
        found.add("buffer", arguments.buffers())
        processed = [r for r in pytree.tree_leaves(arguments.call.process(results)) if _requires_grad(r)]
        values, wanted = processed, list(arguments)
        for k in range(order):
            if not values or not wanted:
                break
            values = _gradients(values, wanted, more=k + 1 < order, shaken=shaken)
            found.add(("gradient", "second gradient")[k], values)
            values = [v for v in values if _requires_grad(v)]
    return found


def draws(arguments: Arguments, order: int) -> bool:
    """Does the call take numbers of PyTorch's generator?"""
    with torch.random.fork_rng(devices=[]):
        run(arguments, order)
        after = torch.get_rng_state()
        torch.manual_seed(0)
        return not torch.equal(after, torch.get_rng_state())


def _requires_grad(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _gradients(values: list[torch.Tensor], wanted: list[torch.Tensor], more: bool, shaken: int) -> list[Any]:
    cotangents = [_shaken(cotangent(v), shaken) if shaken else cotangent(v) for v in values]
    found = torch.autograd.grad(values, wanted, cotangents, allow_unused=True, create_graph=more)
    return [False if g is None else g for g in found]  # None would be no leaf


def cotangent(result: torch.Tensor) -> torch.Tensor:
    """Numbers that every floating type has exactly, so that float64 gets the same."""
    steps = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    return torch.cos(steps * 1.7 + 0.3).to(torch.bfloat16).to(result.dtype)


def _shaken(numbers: torch.Tensor, way: int) -> torch.Tensor:
    """Each number a unit in its last place larger or smaller."""
    steps = torch.randint(0, 2, numbers.shape, generator=torch.Generator().manual_seed(way)) * 2.0 - 1
    return numbers * (1 + steps.to(numbers.dtype) * torch.finfo(numbers.dtype).eps)
