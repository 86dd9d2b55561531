"""``requires_grad_()`` inside of forward: passed over where nobody could tell, else a graph break."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from tests.twins import assert_same, normal


@pytest.fixture(autouse=True)
def _programs(interpreted):
    pass


class Net(nn.Module):
    def __init__(self, use: Any) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(4, 4).double(), use

    def forward(self, x):
        return self.use(self.layer, x)


def _assigned(layer, x):
    h = x[:, None]
    h.requires_grad = True
    return layer(h).sin()


def _called(layer, x):
    with torch.no_grad():
        h = layer(x).tanh()
    return layer(h.requires_grad_()).sin()


def _detached(layer, x):
    h = (x * 2).requires_grad_(True)
    return layer(x), h.detach() + 1, h.argmax()


def _returned(layer, x):
    h = x * 2
    h.requires_grad = True
    return layer(h), h


def _alone(layer, x):
    return layer(x), (x * 2).requires_grad_().cos()


def _asked(layer, x):
    h = (x * 2).requires_grad_()
    return layer(h) * (2 if h.requires_grad else 3)


def _asked_of_another(layer, x):
    h = (x * 2).requires_grad_()
    return layer(x) if (h * 3).requires_grad else layer(x).sin()


def _written_by_data(layer, x):
    h = (x * 2).requires_grad_()
    h.data.mul_(2)
    return layer(h)


def _hooked(layer, x):
    h = (x * 2).requires_grad_()
    h.register_hook(lambda g: g * 2)
    return layer(h)


def check(use: Any) -> Any:
    model = Net(use)
    expected = copy.deepcopy(model)
    optimized_module(model, fallback="silent")
    for _ in range(2):
        seen = []
        for net in (model, expected):
            net.zero_grad()
            results = net(normal(3, 4))
            results = results if isinstance(results, tuple) else (results,)
            sum(r.sum() for r in results if r.requires_grad).backward()
            seen.append(([r.detach() for r in results], [r.requires_grad for r in results], net.layer.weight.grad))
        assert_same(*seen)
    return model.daceopt


@pytest.mark.parametrize("use", [_assigned, _called, _detached, _asked_of_another])
def test_the_graph_is_whole_where_nobody_can_tell(use):
    handle = check(use)
    assert not handle.reasons and handle.stats.programs == 1


@pytest.mark.parametrize("use", [_returned, _alone, _asked, _written_by_data, _hooked])
def test_the_graph_breaks_where_somebody_could_tell(use):
    handle = check(use)
    assert handle.reasons and handle.stats.programs >= 1


def test_what_is_written_into_afterwards_is_refused_by_autograd():
    def use(layer, x):
        h = (x * 2).requires_grad_()
        h.mul_(2)
        return layer(h)

    model = optimized_module(Net(use), fallback="silent")
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        model(normal(3, 4))
