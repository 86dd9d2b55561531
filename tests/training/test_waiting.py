"""Gradients that earlier micro-batches have collected are in the update, also of what the last one does not use."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import training_step
from daceopt.training import step_graph
from tests.training.checking import CROSS, Batch, Loop, adam, batches, check, compare, interpreted, perceptron, sgd


class Heads(nn.Module):
    """A layer that all calls use, and one that the call names."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.heads = nn.Linear(6, 9), nn.ModuleList(nn.Linear(9, 4) for _ in range(count))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](torch.tanh(self.body(x)))


def turns(*heads: int) -> list[Batch]:
    return [(x, head, y) for (x, y), head in zip(batches(len(heads)), heads)]


@pytest.mark.parametrize("built", [False, True], ids=["interpreted", "built"])
@pytest.mark.parametrize("make", [sgd, adam], ids=["sgd", "adam"])
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}], ids=["", "norm", "value"])
@pytest.mark.share(3)
def test_another_head_in_the_last_micro_batch(clip: dict[str, float], make: Any, built: bool) -> None:
    with nullcontext() if built else interpreted():
        check(Heads(), CROSS, make, turns(0, 1, 0, 1, 1, 1), inputs=2, accumulate=2, **clip)


@pytest.mark.usefixtures("quick")
def test_several_heads_batches_and_programs() -> None:
    given = [(x[:rows], head, y[:rows]) for (x, head, y), rows in zip(turns(0, 1, 2, 1, 2, 0, 0, 0, 2), (5, 3, 4) * 3)]
    step = check(Heads(3), CROSS, adam, given, inputs=2, accumulate=3)
    programs = step.daceopt.stats.programs
    for batch in given:
        step(*batch)
    assert step.daceopt.stats.programs <= programs + 3  # first micro-batches of heads that came later, in other updates


@pytest.mark.usefixtures("quick")
def test_gradients_are_kept_of_all() -> None:
    model, loop = Heads(), Loop(Heads(), CROSS, sgd, accumulate=2)
    step = training_step(model, CROSS, sgd(model), accumulate=2, keep_gradients=True, fallback="raise")
    for batch in turns(0, 1):
        step(*batch)
        loop(*batch, inputs=2)
    for p, q in zip(model.parameters(), loop.model.parameters()):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [sgd, adam], ids=["sgd", "adam"])
def test_frozen_between_micro_batches(make: Any) -> None:
    model, peer, exact = perceptron(), Loop(perceptron(), CROSS, make, 2), Loop(perceptron().double(), CROSS, make, 2)
    step = training_step(model, CROSS, make(model), accumulate=2, fallback="raise")
    for k, (x, y) in enumerate(batches(8)):
        for m in (model, peer.model, exact.model):
            m[0].requires_grad_(k not in (3, 4, 5))
        step(x, y)
        peer(x, y)
        exact(x.double(), y)
        compare(step.optimizer, model, peer, exact)


@pytest.mark.usefixtures("quick")
def test_many_combinations_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graph, "SIZE_LIMIT", 1)
    step = check(Heads(3), CROSS, adam, turns(1, 0, 2, 0, 1, 0), inputs=2, accumulate=2, fallback="silent")
    assert list(step.reasons) == ["there are steps for 1 sets of parameters of earlier micro-batches already"]
