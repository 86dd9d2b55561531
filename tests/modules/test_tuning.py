"""What is fastest as measured: chosen among recipes, options and eager PyTorch, kept, and found again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module, recipes
from daceopt.errors import Unsupported
from daceopt.modules import tuning
from daceopt.modules.options import check
from daceopt.modules.tuning import EAGER, Found, search
from daceopt.passes.choice import Candidate, Choice
from daceopt.passes.recipe import Recipe

CPU, NONE = recipes.get("cpu"), recipes.get("none")
EITHER = Choice.of("either", CPU, NONE)


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(x * self.weight) * 2


def taking(seconds: dict[str, float], tried: list[str]) -> Callable[[Recipe], tuning.Run]:
    """Programs that say how long they take: by recipe, or by the text of a step."""

    def run(recipe: Recipe) -> tuning.Run:
        tried.append(recipe.name)
        known = [s for text, s in seconds.items() if text in str(recipe)]
        return lambda: min(known, default=seconds["default"])

    return run


@pytest.fixture
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program returns is what it takes."""
    monkeypatch.setattr(tuning, "_measure", lambda contenders: {name: run() for name, run in contenders.items()})


def test_rounds_are_timed_in_turn() -> None:
    ran: list[str] = []
    spent = tuning._measure({name: lambda name=name: ran.append(name) for name in "ab"})
    assert set(spent) == {"a", "b"} and all(s > 0 for s in spent.values()) and ran[2:6] == ["a", "b", "a", "b"]


@pytest.mark.usefixtures("_no_clock")
def test_the_fastest_recipe() -> None:
    tried: list[str] = []
    found = search(EITHER, taking({"default": 0.004, "none:": 0.001}, tried), None, 0.01)
    assert found.name == "none" and found.options == {} and set(found.seconds) == {"cpu", "none"}
    assert found.recipe(EITHER) == NONE and str(found).startswith("none is the fastest as measured: cpu ")


@pytest.mark.usefixtures("_no_clock")
@pytest.mark.parametrize(("trains", "tried"), [(True, ["cpu", "training"]), (False, ["cpu", "inference"])])
def test_recipes_are_measured_where_they_serve(trains: bool, tried: list[str]) -> None:
    """Also those of which the model of time knows nothing."""
    among = Choice.of(
        "either",
        CPU,
        Candidate(recipes.get("inference"), trains=False, modelled=False),
        Candidate(recipes.get("training"), infers=False, modelled=False),
    )
    ran: list[str] = []
    found = search(among, taking({"default": 0.004, f"{tried[1]}:": 0.001}, ran), None, 1e-9, trains)
    assert ran == tried and found.name == tried[1] and found.recipe(among) == recipes.get(tried[1])


@pytest.mark.usefixtures("_no_clock")
def test_eager_stays_where_it_is_faster() -> None:
    found = search(EITHER, taking({"default": 0.004}, []), lambda: 0.003, 5.0)
    assert found.name == EAGER and found.recipe(EITHER) is None
    assert search(EITHER, taking({"default": 0.004}, []), lambda: 0.0039, 1e-9).name == "cpu", "within the noise"


@pytest.mark.usefixtures("_no_clock")
def test_options_of_steps_are_tried_until_the_time_is_over() -> None:
    tried: list[str] = []
    found = search(CPU, taking({"default": 0.004, "threading{work=8192}": 0.001}, tried), None, 600.0)
    assert found.options == {"threading": {"work": 8192}} and found.name == "cpu"
    chosen = found.recipe(CPU)
    assert chosen is not None and "threading{work=8192}" in str(chosen)
    assert "threading with work=8192" in str(found) and len(tried) > 5
    tried.clear()
    assert search(CPU, taking({"default": 0.002}, tried), None, 1e-9).options == {} and tried == ["cpu"]


@pytest.mark.usefixtures("_no_clock")
def test_a_recipe_that_does_not_compile_is_no_contender() -> None:
    def run(recipe: Recipe) -> tuning.Run:
        if recipe.name == "none":
            raise Unsupported("not this one")
        return lambda: 1.0

    assert search(EITHER, run, None, 1e-9).name == "cpu"

    def refuse(recipe: Recipe) -> tuning.Run:
        raise Unsupported("none of them")

    with pytest.raises(Unsupported, match="none of them"):
        search(EITHER, refuse, None, 1.0)


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

    def found(recipe: Recipe, run: Any, eager: Any, seconds: float, trains: bool | None) -> Found:
        assert trains
        run(CPU)(), eager()
        searched.append(recipe.name)
        return Found("cpu", {"threading": {"work": 64}}, {"cpu": 1.0})

    monkeypatch.setattr(tuning, "search", found)
    x = torch.randn(5, 16, requires_grad=True)
    for _ in range(2):
        model = optimized_module(Doubled(), tune="1s", fallback="raise")
        before = torch.random.get_rng_state()
        result = model(x)
        result.sum().backward()
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.allclose(result, torch.tanh(x) * 2) and model.calls == 1 and model.weight.grad is not None
        assert model.daceopt.stats.choices[0].startswith("cpu (threading with work=64) is the fastest as measured")
    assert searched == ["auto"]


@pytest.mark.usefixtures("interpreted")
def test_a_module_that_stays_eager_says_why_and_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "lookup", lambda identity: Found(EAGER, {}, {"cpu": 2.0, EAGER: 1.0}))
    model = optimized_module(Doubled(), tune=True)
    x = torch.randn(3, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.allclose(model(x), torch.tanh(x) * 2)
    stats = model.daceopt.stats
    assert stats.eager_calls == stats.calls == 3 and stats.fallbacks == {} and model.calls == 3
    assert stats.choices == ["eager PyTorch is the fastest as measured: cpu 2000.000 ms, eager PyTorch 1000.000 ms"]


def test_keys_tell_graphs_recipes_and_machines_apart() -> None:
    one = tuning.identity("graph", CPU, "code")
    assert one == tuning.identity("graph", CPU, "code")
    others = [tuning.identity("other", CPU, "code"), tuning.identity("graph", NONE, "code")]
    assert len({one, *others, tuning.identity("graph", CPU, "new code"), tuning.identity("graph", EITHER, "code")}) == 5
