"""What models do, in a training step: parametrizations, checkpoints, hooks, types."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from daceopt import training_step
from tests.training.checking import CROSS, Loop, adam, batches, check, perceptron, sgd


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).T


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.net, x, use_reentrant=False)


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = {"weight": self.net.weight * 2, "bias": self.net.bias}
        return torch.func.functional_call(self.net, own, (x,))


class Scaled(nn.Module):
    """Parameters of rank 0 and without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.none, self.net = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0)), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * self.scale + self.none.sum()


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).double())


def _symmetric() -> nn.Module:
    layer = nn.Linear(6, 6)
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.Linear(6, 4))


def _doubled() -> nn.Module:
    layer = nn.Linear(6, 4)
    layer.register_forward_hook(lambda module, given, found: found * 2)
    return nn.Sequential(nn.Linear(6, 6), layer)


def _doubled_backward() -> nn.Module:
    layer = nn.Linear(6, 4)
    layer.register_full_backward_hook(lambda module, given, found: (given[0] * 2,))
    return nn.Sequential(nn.Linear(6, 6), layer)


def _between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), layer, nn.Linear(5, 4))


NATIVE = {
    "weight-norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))),
    "spectral-norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))),
    "parametrized": _symmetric,
    "checkpoint": Checkpointed,
    "functional-call": Called,
    "forward-hook": _doubled,
    "no-statistics": lambda: _between(nn.BatchNorm1d(5, track_running_stats=False)),
    "cumulative": lambda: _between(nn.BatchNorm1d(5, momentum=None)),
    "dropout": lambda: _between(nn.Dropout(1.0)),
    "rank-0": Scaled,
}
IN_PARTS = {
    "backward-hook": _doubled_backward,
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", NATIVE)
def test_what_models_do_is_one_program(name: str) -> None:
    torch.manual_seed(9)
    step = check(NATIVE[name](), CROSS, sgd, batches(3))
    assert not step.reasons


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", IN_PARTS)
def test_what_models_do_runs_in_parts(name: str) -> None:
    torch.manual_seed(9)
    step = check(IN_PARTS[name](), CROSS, sgd, batches(3), fallback="silent")
    assert list(step.reasons.values()) == [3]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}], ids=["", "norm"])
def test_parameters_of_two_types(clip: dict[str, float]) -> None:
    model, twin = Mixed(), Mixed()
    twin.load_state_dict(model.state_dict())
    step, loop = training_step(model, CROSS, adam(model), fallback="raise", **clip), Loop(twin, CROSS, adam, **clip)
    for batch in batches(3):
        step(*batch)
        loop(*batch)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q)
