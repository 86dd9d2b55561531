"""What forward asks of small tensors that a module keeps: whole programs, which depend on the answers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from daceopt import optimized_module
from tests.twins import assert_same, normal

Change = Callable[[nn.Module, int], Any]


@pytest.fixture(autouse=True)
def _programs(interpreted):
    pass


class Net(nn.Module):
    """A layer, and what ``use`` makes of its result; tensors of the ``state`` are buffers."""

    def __init__(self, use: Any, **state: Any) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(4, 4).double(), use
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value.clone())
            else:
                setattr(self, name, value)

    def forward(self, x):
        return self.use(self, self.layer(x))


class Table:
    """Compares arrays of NumPy, as representations of groups do."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.array.shape == other.array.shape and self.is_close(other)

    def __hash__(self) -> int:
        return 1

    def is_close(self, other: Table) -> bool:
        return np.allclose(self.array, other.array)


def _initialized(net, h):
    if not net.ready:
        net.shift.copy_(-h.detach().mean(0))
        net.ready.fill_(True)
    return h + net.shift


def _counted(net, h):
    result = h * 2 if net.n < 2 else h * 3
    net.n += 1
    return result


def _written(net, h):
    result = torch.zeros_like(h)
    result[:, net.at[0] : net.at[1]] = h[:, net.at[0] : net.at[1]].sin()
    return result


def _nothing(net: nn.Module, k: int) -> None:
    pass


N = torch.tensor

WHOLE: dict[str, tuple[Any, dict[str, Any], Change, int]] = {
    "a flag of a first call": (_initialized, {"ready": N(False), "shift": torch.zeros(4).double()}, _nothing, 2),
    "a counter": (_counted, {"n": N(0)}, _nothing, 2),
    "bounds of slices": (_written, {"at": N([1, 3])}, lambda net, k: net.at.copy_(N([k % 2, 3])), 2),
    "range": (lambda net, h: sum(h.sin() ** k for k in range(net.n)), {"n": N(3)}, _nothing, 1),
    "a count": (lambda net, h: h.repeat(int(net.n), 1), {"n": N(2)}, lambda net, k: net.n.fill_(k % 2 + 1), 2),
    "a list": (
        lambda net, h: torch.cat(h.split(net.n.tolist(), 1)[::-1], 1),
        {"n": N([1, 3])},
        lambda net, k: net.n.copy_(N([3, 1])),
        2,
    ),
    "bool": (lambda net, h: h.sin() if bool(net.n) else h, {"n": N(True)}, lambda net, k: net.n.fill_(False), 2),
    "not": (lambda net, h: h * (not net.n), {"n": N(0)}, lambda net, k: net.n.fill_(k), 2),
    "or": (lambda net, h: h * (net.n or net.k), {"n": N(0), "k": N(5)}, lambda net, k: net.n.fill_(k), 2),
    "some are": (
        lambda net, h: h.sin() if (net.n > 1).any() and not torch.isnan(net.n).all() else h,
        {"n": N([0.0, 1.0])},
        lambda net, k: net.n.fill_(k + 1),
        2,
    ),
    "torch.equal": (
        lambda net, h: h.sin() if torch.equal(net.p, net.q) else h,
        {"p": N([1, 2]), "q": N([1, 1])},
        lambda net, k: net.p.fill_(k + 1),
        2,
    ),
    "arrays": (
        lambda net, h: h.sin() if net.p == net.q else h,
        {"p": Table(np.eye(3)), "q": Table(np.eye(3))},
        lambda net, k: net.p.array.fill(k),
        2,
    ),
}


def check(use: Any, state: dict[str, Any], change: Change) -> Any:
    """Four calls of the optimized module and of a copy, which change as ``change(module, call)`` says; its handle."""
    model = Net(use, **copy.deepcopy(state))
    expected = copy.deepcopy(model)
    optimized_module(model, fallback="silent")
    for k in range(4):
        seen = []
        for net in (model, expected):
            net.zero_grad()
            result = net(normal(3, 4))
            result.square().sum().backward()
            seen.append((result.detach(), net.layer.weight.grad, dict(net.named_buffers())))
            change(net, k)
        assert_same(*seen)
    return model.daceopt


@pytest.mark.parametrize("name", WHOLE)
def test_answers_are_known(name):
    use, state, change, programs = WHOLE[name]
    handle = check(use, state, change)
    assert not handle.reasons and handle.stats.programs == programs and handle.stats.eager_calls == 0


def _written_before(net, h):
    net.n += 1
    return h.sin() if net.n < 2 else h


def _written_through_a_view(net, h):
    net.n.view(-1)[0] += 1
    return h.sin() if net.n < 2 else h


def _exchanged(net, h):
    net.n.data = torch.ones_like(net.n)
    return h.sin() if net.n > 0 else h


def _computed_and_written(net, h):
    answer = net.n + 1
    answer.mul_(0)
    return h.sin() if answer > 0 else h


def _element_written(net, h):
    answer = net.n + 0
    answer[:1] = 0
    return h.sin() if answer.any() else h


BREAKS: dict[str, tuple[Any, dict[str, Any], Change]] = {
    "written before": (_written_before, {"n": N(0)}, _nothing),
    "written through a view": (_written_through_a_view, {"n": N(0)}, _nothing),
    "written after it was computed": (_computed_and_written, {"n": N(5)}, _nothing),
    "an element written": (_element_written, {"n": N([5, 0])}, _nothing),
    "another memory": (_exchanged, {"n": N(0)}, lambda net, k: net.n.fill_(k % 2)),
    "a parameter": (
        lambda net, h: h.sin() if net.layer.bias[0] > 0 else h,
        {},
        lambda net, k: net.layer.bias.data.fill_(k - 1),
    ),
    "a large one": (
        lambda net, h: h.sin() if net.n.any() else h,
        {"n": torch.zeros(5000)},
        lambda net, k: net.n.fill_(k),
    ),
    "what the call brings": (lambda net, h: h.sin() if h.sum() > 0 else h, {}, _nothing),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_not_known_breaks_the_graph(name):
    assert check(*BREAKS[name]).reasons


def test_a_number_that_is_another_one_in_each_call_breaks_the_graph():
    use, change = lambda net, h: h.repeat(int(net.n), 1), lambda net, k: net.n.fill_(k + 3)
    handle = check(use, {"n": N(2)}, change)
    assert handle.reasons and handle.stats.eager_calls == 0
