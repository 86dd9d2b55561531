"""Contenders' results beside float64: a time is worth nothing if the numbers are wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

Results = Callable[[], Sequence[torch.Tensor]]
_FACTOR = 4.0  # of eager PyTorch's own error
_ULPS = 8.0
_OTHERS = 12  # roundings that are tried
_NEGLIGIBLE = 1e-7  # of the largest tensor's norm: a gradient below that has cancelled, and is rounding alone


class Check:
    """What a model computes in float64, and how far eager PyTorch in float32 is from it.

    Errors are norms of differences, of each tensor. An input of relu that rounds to the other side of zero changes a
    gradient by more than rounding itself does, and in eager PyTorch it is another one. So where a contender seems to be
    wrong, ``others`` (eager PyTorch with its operands moved by a unit in the last place, another way at each call) say
    how far such results lie from each other.
    """

    def __init__(
        self, exact: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], others: Results | None = None
    ) -> None:
        self._exact = [x.double() for x in exact]
        self._negligible = _NEGLIGIBLE * max(map(norm, self._exact), default=0.0)
        self._allowed = [self._limit(e, x) for e, x in zip(eager, self._exact, strict=True)]
        self._others = others

    def _limit(self, eager: torch.Tensor, exact: torch.Tensor) -> float:
        ulp = torch.finfo(eager.dtype).eps if eager.dtype.is_floating_point else 0.0
        return _FACTOR * distance(eager, exact) + _ULPS * ulp * norm(exact) + self._negligible

    def fault(self, results: Sequence[torch.Tensor]) -> str | None:
        """What is wrong with the first results of a contender, None if rounding explains them; a contender without
        gradients gives fewer of them."""
        if not results:
            return "no result"
        for k, (mine, exact, allowed) in enumerate(zip(results, self._exact, self._allowed)):
            if mine.shape != exact.shape:
                return f"result {k} has shape {tuple(mine.shape)}, expected {tuple(exact.shape)}"
            error = distance(mine, exact)
            if not error <= allowed and self._others is not None:
                self._look_at(self._others)
                return self.fault(results)
            if not error <= allowed:
                return f"result {k} is off by {error:.3g}, where rounding explains {allowed:.3g}"
        return None

    def _look_at(self, others: Results) -> None:
        self._others = None
        for _ in range(_OTHERS):
            limits = [self._limit(x, e) for x, e in zip(others(), self._exact, strict=True)]
            self._allowed = list(map(max, self._allowed, limits))


def norm(exact: torch.Tensor) -> float:
    """Of the finite elements."""
    return float(exact.double().nan_to_num(0.0, 0.0, 0.0).norm())


def distance(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference; elements that are infinite or NaN alike in both do not count."""
    difference = result.detach().double() - exact
    same = (result == exact) | (result.isnan() & exact.isnan())
    return float(difference.masked_fill(same, 0.0).norm())


def reference(model: nn.Module, inputs: Sequence[torch.Tensor], training: bool) -> Check:
    """The check for ``model``: results, and with ``training`` gradients of parameters and inputs (:func:`results`)."""
    wide = copy.deepcopy(model).double()
    exact = results(wide, [widen(x) for x in inputs], training)()
    others = disturb(model, inputs, lambda other, moved: results(other, moved, training))
    return Check(exact, results(copy.deepcopy(model), inputs, training)(), others)


def disturb(
    model: nn.Module, inputs: Sequence[torch.Tensor], of: Callable[[nn.Module, Sequence[torch.Tensor]], Results]
) -> Results:
    """What ``of`` gives for a copy of ``model`` and ``inputs`` with all numbers moved by a unit in the last place or
    none, another way at each call."""
    noise = torch.Generator().manual_seed(0)

    def move(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        up_or_down = torch.randint(-1, 2, x.shape, generator=noise).to(x.device)
        return (x.detach() * (1 + up_or_down * torch.finfo(x.dtype).eps)).requires_grad_(x.requires_grad)

    def call() -> Sequence[torch.Tensor]:
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(move(parameter))
        return of(other, [move(x) for x in inputs])()

    return call


def results(model: nn.Module, inputs: Sequence[torch.Tensor], training: bool) -> Results:
    """One call of ``model``: its result, then with ``training`` the gradients, for a seed that the shape decides."""
    model.train(training)

    def call() -> list[torch.Tensor]:
        with torch.set_grad_enabled(training):
            leaves = [x.detach().requires_grad_(x.requires_grad and training) for x in inputs]
            y = model(*leaves)
        return [y.detach(), *(_gradients(model, leaves, y) if training else ())]

    return call


def _gradients(model: nn.Module, leaves: Sequence[torch.Tensor], y: torch.Tensor) -> list[torch.Tensor]:
    differentiable = [t for t in [*model.parameters(), *leaves] if t.requires_grad]
    seed = torch.linspace(-1, 1, y.numel(), dtype=torch.float64, device=y.device).to(y.dtype).view(y.shape)
    return [g for g in torch.autograd.grad(y, differentiable, seed, allow_unused=True) if g is not None]


def widen(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float64 if it has floating point."""
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
