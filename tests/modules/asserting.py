"""Modules that assert something of their numbers; in files of tests pytest would write these statements anew."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Asserted(nn.Module):
    """Two assertions, of which the second keeps indices in their table."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.table = nn.Embedding(5, 2)

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x))
        assert torch.isfinite(h).all(), "not finite"
        assert k.max() < 5
        return self.last(h) + self.table(k)


class Refused(nn.Module):
    """An assertion in a graph that is not compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sparse.mm(torch.eye(3).to_sparse(), x)
        assert (h > 0).all(), "below"
        return h


class ReadAsserted(nn.Module):
    """Assertions of numbers that are read out of tensors, whole ones and floats, behind a change of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        assert k.max().item() < x.shape[1], "too long"
        mean = x.mean().item()
        assert abs(mean) <= 5.0
        assert -mean * 2 < 8, "too low"
        return x.tanh() * mean + k[:, None]


class Caught(nn.Module):
    """An assertion whose error is caught."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            assert x.mean().item() < 1
        except AssertionError:
            return x * 3
        return x.tanh()


class Limit(ValueError):
    """An error of the user's own."""


class Demanding(nn.Module):
    """Demands something of its data in the way that ``demand`` says, which raises an error otherwise."""

    def __init__(self, demand: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.linear, self.demand = nn.Linear(4, 3), demand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        self.demand(h)
        return h.tanh()


def _constant(h: torch.Tensor) -> None:
    if torch.any(h > 50):
        raise Limit("above", 50)


def _class(h: torch.Tensor) -> None:
    if (h < -50).any() or bool((h > 50).any()):
        raise KeyError


def _of_data(h: torch.Tensor) -> None:
    if not (h.abs() < 50).all().item():
        largest = h.abs().max()
        raise Limit(f"{largest} is above 50" if largest > 60 else "above")


def _number(h: torch.Tensor) -> None:
    n = h.abs().max().item()
    if not n < 50:
        raise Limit(f"{n} is above 50")


def _message_of_data(h: torch.Tensor) -> None:
    assert (h.abs() < 50).all(), f"{h.abs().max()} is above 50"


def _end(h: torch.Tensor) -> None:
    if (h.abs() < 50).all():
        return
    raise Limit("above")


def _distribution(h: torch.Tensor) -> None:
    torch.distributions.Normal(h, torch.where(h.abs() < 50, 1.0, -1.0), validate_args=True)


def _likelihood(h: torch.Tensor) -> None:
    nn.functional.gaussian_nll_loss(h, h, torch.where(h.abs() < 50, 1.0, -1.0))


DEMANDS = [_constant, _class, _of_data, _number, _message_of_data, _end, _distribution, _likelihood]


class Handled(nn.Module):
    """An error that is caught."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            _constant(x)
        except Limit:
            return x * 3
        return x.tanh()


class Counting(nn.Module):
    """What it has changed before it raises an error of data stays changed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        _of_data(x)
        self.calls.add_(1)
        return x.tanh() * self.calls
