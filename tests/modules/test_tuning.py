"""``tune``: a module takes what is fastest as measured, or as it was found before."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module, recipes
from daceopt.errors import RunError
from daceopt.modules.options import check
from daceopt.passes.recipe import Edit
from daceopt.programs.tuning.result import EAGER, TuningRecord, TuningResult, TuningTrial
from daceopt.programs.tuning.search import Search
from daceopt.programs.tuning.variations import Variation

CPU = recipes.get("cpu")
TRIALS = (TuningTrial("cpu", 1.0), TuningTrial("other", 2.0))


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(x * self.weight) * 2


@pytest.mark.parametrize(("tune", "seconds"), [(True, 10.0), ("30s", 30.0), ("2min", 120.0), (1.5, 1.5), ("3", 3.0)])
def test_budgets(tune: Any, seconds: float) -> None:
    assert check(tune=tune).tune == seconds and check().tune is None


@pytest.mark.parametrize("tune", ["soon", -1, 0, "0s", "inf", False, [1]])
def test_wrong_budgets_are_errors_at_once(tune: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="expected None, True, a number of seconds"):
        optimized_module(Doubled(), tune=tune)


@pytest.mark.usefixtures("interpreted")
def test_a_module_takes_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searched once; another module, as another process would, finds it in the cache. The user's state is his own."""
    searched: list[str] = []
    change = Variation("threading with work=64", (Edit("with_options", ("threading",), {"work": 64}),))

    def search_once(search: Search) -> TuningResult:
        assert search._budget == 1.0 and search._eager is not None
        search._make(CPU).call(), search._eager.call()
        searched.append(search._recipe.name)
        return TuningResult("cpu", (change,), (2.0, 1.0), TRIALS, 0, 1.0)

    monkeypatch.setattr(Search, "_search", search_once)
    x = torch.randn(5, 16, requires_grad=True)
    for _ in range(2):
        model = optimized_module(Doubled(), tune="1s", fallback="raise")
        before = torch.random.get_rng_state()
        result = model(x)
        result.sum().backward()
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.allclose(result, torch.tanh(x) * 2) and model.calls == 1 and model.weight.grad is not None
        stats = model.daceopt.stats
        assert stats.choices[0].startswith("cpu (threading with work=64) is the fastest of 2 ways as measured")
        assert [str(f) for f in stats.tuning] == stats.choices[:1]
        assert stats.tuning[0].recipe is not None and "threading{work=64}" in str(stats.tuning[0].recipe)
    assert searched == ["auto"]


@pytest.mark.usefixtures("interpreted")
def test_a_module_that_stays_eager_says_why_and_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TuningRecord, "result", lambda record: TuningResult(EAGER, (), (2.0, 1.0), TRIALS, 0, 10.0))
    model = optimized_module(Doubled(), tune=True)
    x = torch.randn(3, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.allclose(model(x), torch.tanh(x) * 2)
    stats = model.daceopt.stats
    assert stats.eager_calls == stats.calls == 3 and stats.fallbacks == {} and model.calls == 3
    assert len(stats.choices) == 1 and stats.choices[0].startswith("eager PyTorch is the fastest of 2 ways as measured")


@pytest.mark.usefixtures("interpreted")
def test_a_first_call_that_is_an_error_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(search: Search) -> TuningResult:
        raise RunError("an index is out of range")

    monkeypatch.setattr(Search, "_search", fail)
    model = optimized_module(Doubled(), tune="1s", fallback="raise", recipe="cpu")
    x = torch.randn(7, 16)
    assert torch.allclose(model(x), torch.tanh(x) * 2)
    assert not model.daceopt.stats.tuning and model.daceopt.stats.programs == 1
