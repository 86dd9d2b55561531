"""Recurrent layers as programs: results and gradients against float64, with weights that change between calls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from tests.numerics import assert_within_rounding

CASES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {"num_layers": 2, "batch_first": True}),
    "projected": (nn.LSTM, {"proj_size": 9, "bidirectional": True}),
    "gru": (nn.GRU, {"bidirectional": True}),
    "rnn": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "bias": False}),
}


def _run(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Results and gradients."""
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    y, state = module(x)
    results = [y, *(state if isinstance(state, tuple) else (state,))]
    sum(r.square().sum() for r in results).backward()
    return [*(r.detach() for r in results), x.grad, *(p.grad for p in module.parameters())]  # type: ignore[list-item]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    """Widths that fill no panel; the second call finds other weights where those of the first one were packed."""
    torch.manual_seed(1)
    cls, options = CASES[name]
    plain = cls(7, 20, **options)
    ours = optimized_module(copy.deepcopy(plain), fallback="raise")
    for _ in range(2):
        x = torch.randn(18, 17, 7)
        exact = copy.deepcopy(plain).double()
        found, theirs, wanted = _run(ours, x), _run(plain, x), _run(exact, x.double())
        for mine, peer, wide in zip(found, theirs, wanted, strict=True):
            assert_within_rounding(mine, wide, peer)
        with torch.no_grad():
            for own, other in zip(ours.parameters(), plain.parameters(), strict=True):
                own.mul_(0.75)
                other.mul_(0.75)
    assert "contraction_panels" in ours.daceopt.source()


def test_one_program_for_all_lengths() -> None:
    torch.manual_seed(1)
    plain = nn.LSTM(5, 12)
    ours = optimized_module(copy.deepcopy(plain), fallback="raise")
    exact = copy.deepcopy(plain).double()
    with torch.no_grad():
        for steps, batch in ((6, 3), (40, 2), (2, 9), (1, 1)):
            x = torch.randn(steps, batch, 5)
            if steps > 1 and batch > 1:
                torch._dynamo.mark_dynamic(x, 0)
                torch._dynamo.mark_dynamic(x, 1)
            assert_within_rounding(ours(x)[0], exact(x.double())[0], plain(x)[0])
