"""Training steps with parameters of 16 bits, and with a GradScaler, beside PyTorch's own loop and float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import training_step
from daceopt.errors import FallbackWarning, Unsupported
from tests.numerics import assert_within_rounding
from tests.training.checking import batches, perceptron, sgd

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "eps": 1e-3}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-3, "amsgrad": True}),
}


def loss(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(found if found.dtype == torch.float64 else found.float(), target)


@pytest.mark.share(2)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("clip", [0.0, 0.1], ids=["", "norm"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_no_farther_from_float64(name: str, clip: float, dtype: torch.dtype) -> None:
    """After each step, from the same parameters and state: rounded once, where PyTorch rounds after each operator."""
    kind, options = OPTIMIZERS[name]
    ours = perceptron().to(dtype)
    optimizer = kind(ours.parameters(), **options)
    step = training_step(ours, loss, optimizer, clip_norm=clip or None, fallback="raise")
    for x, target in batches(4):
        peer, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
        made = [kind(m.parameters(), **options) for m in (peer, exact)]
        for other in made:
            other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(x.to(dtype), target)
        for module, other, given in ((peer, made[0], x.to(dtype)), (exact, made[1], x.to(dtype).double())):
            loss(module(given), target).backward()
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            other.step()
        for mine, theirs, wide in zip(ours.parameters(), peer.parameters(), exact.parameters()):
            assert mine.dtype == dtype
            assert_within_rounding(mine, wide, theirs, factor=2, ulps=1)
        found, theirs, wide = (o.state_dict()["state"] for o in (optimizer, *made))
        for key, state in theirs.items():
            assert {n: v.dtype for n, v in found[key].items()} == {n: v.dtype for n, v in state.items()}
            for n, value in state.items():
                assert_within_rounding(found[key][n], wide[key][n], value, factor=2, ulps=1)
    assert not step.reasons


def test_built() -> None:
    model = perceptron().to(torch.bfloat16)
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, twin)]
    step = training_step(model, loss, optimizers[0], fallback="raise")
    for x, target in batches(3):
        step(x.to(torch.bfloat16), target)
        optimizers[1].zero_grad()
        loss(twin(x.to(torch.bfloat16)), target).backward()
        optimizers[1].step()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q, rtol=2e-2, atol=1e-2)


@pytest.mark.usefixtures("quick")
def test_a_scaler_runs_in_parts() -> None:
    model, twin = perceptron(), perceptron()
    ours, theirs = sgd(model), sgd(twin)
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2) for _ in range(2))
    step = training_step(model, loss, ours, scaler=scaler, clip_norm=0.5)
    with pytest.warns(FallbackWarning, match="a GradScaler looks at all gradients"):
        step(*batches(1)[0])
    for k, (x, target) in enumerate([*batches(1), *batches(4)]):
        x = x * 1e30 if k == 2 else x
        if k:
            with torch.autocast("cpu", dtype=torch.float16):
                step(x, target)
        theirs.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=k > 0):
            value = loss(twin(x), target)
        other.scale(value).backward()
        other.unscale_(theirs)
        nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        other.step(theirs)
        other.update()
        assert scaler.get_scale() == other.get_scale()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=2e-3)


def test_what_is_no_scaler_is_refused() -> None:
    model = perceptron()
    with pytest.raises(TypeError, match="expected a torch.amp.GradScaler"):
        training_step(model, loss, sgd(model), scaler=2.0)  # type: ignore[arg-type]
    strict = training_step(model, loss, sgd(model), scaler=torch.amp.GradScaler("cpu"), fallback="raise")
    with pytest.raises(Unsupported, match="GradScaler"):
        strict(*batches(1)[0])
