"""Whole networks train as in PyTorch: each step within what rounding explains, and the curve in rounding's band."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module, training_step
from tests.training import trajectories
from tests.training.checking import Loop, Make, interpreted
from tests.training.networks import NETWORKS, Network, build

QUICK = ("dlrm", "convnext", "lstm", "gpt2")  # one of each kind; `make test-models` runs them all, for longer
LONG = 200


def _sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def _adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


OPTIMIZERS: dict[str, Any] = {"sgd": _sgd, "adamw": _adamw}


def _make(network: Network, optimizer: str) -> Make:
    return partial(OPTIMIZERS[optimizer], rate=network.rates[list(OPTIMIZERS).index(optimizer)])


def _whole(network: Network, make: Make, model: nn.Module) -> Any:
    """A step as one program."""
    return training_step(model, network.loss, make(model), targets=1, fallback="raise")


class _Optimized:
    """An optimized module in PyTorch's own loop."""

    def __init__(self, network: Network, make: Make, model: nn.Module, factor: float = 1.0) -> None:
        self.model = optimized_module(model, fallback="raise")
        self._loop = Loop(self.model, lambda found, target: network.loss(found, target) * factor, make)
        self.optimizer = self._loop.optimizer

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        return self._loop(*batch, inputs=len(batch) - 1)


@pytest.mark.slow
@pytest.mark.share(4)
@pytest.mark.parametrize("name", QUICK)
def test_networks_take_steps(name: str) -> None:
    network = build(name)
    make = _make(network, "adamw" if name in ("gpt2", "lstm") else "sgd")
    found = trajectories.curves(network, make, partial(_whole, network, make), 12, (0, 1, 11))
    found.check(learning=False)
    assert len(found.steps) == 3


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train(name: str, optimizer: str) -> None:
    network = build(name)
    make = _make(network, optimizer)
    found = trajectories.curves(network, make, partial(_whole, network, make), LONG, (0, 1, 50, LONG - 1))
    found.check()


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize(("name", "optimizer"), [("resnet18", "sgd"), ("bert", "adamw"), ("lstm", "adamw")])
def test_optimized_networks_train_in_pytorch_s_loop(name: str, optimizer: str) -> None:
    network = build(name)
    make = _make(network, optimizer)
    found = trajectories.curves(network, make, partial(_Optimized, network, make), LONG, (0, 1, 50, LONG - 1))
    found.check()


@pytest.mark.parametrize("error", [1e-5, 1e-4])
def test_a_small_error_is_found_from_step_to_step(error: float) -> None:
    """The criterion is none that everything meets: a gradient that is too large by so little is seen."""
    network = build("lstm")
    make = _make(network, "sgd")
    with interpreted(), pytest.raises(AssertionError, match="what rounding explains"):
        trajectories.curves(network, make, partial(_Optimized, network, make, factor=1 + error), 1, (0,))


def test_a_small_error_is_found_in_the_curve() -> None:
    network = build("dlrm")
    make, wrong = _make(network, "sgd"), partial(_sgd, rate=network.rates[0] * 1.001)
    with interpreted():
        found = trajectories.curves(network, make, partial(_whole, network, wrong), 40)
    with pytest.raises(AssertionError, match="times what rounding explains"):
        found.check()
