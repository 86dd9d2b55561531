"""What is fastest as measured: chosen among recipes, changes of them and eager PyTorch, kept, and found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from daceopt import recipes
from daceopt.cost import measure
from daceopt.errors import Unsupported
from daceopt.passes.choice import Candidate, Choice
from daceopt.passes.recipe import Recipe
from daceopt.programs.tuning import search
from daceopt.programs.tuning.result import _RESULTS, EAGER, TuningRecord, TuningResult
from daceopt.programs.tuning.search import Contender, Make, Search, Searchers
from daceopt.programs.tuning.variations import variations

CPU, NONE = recipes.get("cpu"), recipes.get("none")
EITHER = Choice.of("either", CPU, NONE)


class Machine:
    """Programs that say how long a call takes: by a text of their recipe, or the default; to compile one takes
    ``compiling`` seconds of a clock that nothing else moves."""

    def __init__(self, default: float, seconds: Mapping[str, float] | None = None, compiling: float = 1.0) -> None:
        self.default, self.seconds, self.compiling = default, seconds or {}, compiling
        self.now = 0.0
        self.compiled: list[Recipe] = []

    def __call__(self, recipe: Recipe) -> Contender:
        self.now += self.compiling
        self.compiled.append(recipe)
        spent = min((s for text, s in self.seconds.items() if text in str(recipe)), default=self.default)
        return Contender(lambda: spent)

    @property
    def names(self) -> list[str]:
        return [recipe.name for recipe in self.compiled]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(fresh_cache))


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program returns is what it takes."""

    def sample(calls: Mapping[str, Callable[[], Any]], **options: Any) -> dict[str, list[float]]:
        return {name: [call()] for name, call in calls.items()}

    monkeypatch.setattr(measure, "sample", sample)


def fastest(machine: Machine, recipe: Recipe, budget: float, *, program: str = "x", **kw: Any) -> TuningResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search.time, "perf_counter", lambda: machine.now)
        return Search(TuningRecord(program, recipe), recipe, machine, budget, **kw).find()


def test_the_fastest_recipe() -> None:
    machine = Machine(0.004, {"none:": 0.001})
    result = fastest(machine, EITHER, 2.0)
    assert result.name == "none" and not result.changes and result.recipe == NONE
    assert machine.names == ["cpu", "none"] and result.seconds == (0.004, 0.001)
    assert str(result).startswith("none is the fastest of 2 ways as measured: 1.000 ms, 4.00 times as fast as cpu; ")
    assert result.report().splitlines()[1:] == [" 4.000 x  none", " 1.000 x  cpu"]


@pytest.mark.parametrize(("trains", "tried"), [(True, ["cpu", "training"]), (False, ["cpu", "inference"])])
def test_recipes_are_measured_where_they_serve(trains: bool, tried: list[str]) -> None:
    """Also those of which the model of time knows nothing."""
    among = Choice.of(
        "either",
        CPU,
        Candidate(recipes.get("inference"), trains=False, modelled=False),
        Candidate(recipes.get("training"), infers=False, modelled=False),
    )
    machine = Machine(0.004, {f"{tried[1]}:": 0.001})
    result = fastest(machine, among, 2.0, trains=trains)
    assert machine.names == tried and result.name == tried[1] and result.recipe == recipes.get(tried[1])


def test_eager_stays_where_it_is_faster() -> None:
    result = fastest(Machine(0.004), EITHER, 5.0, eager=Contender(lambda: 0.003))
    assert result.name == EAGER and result.recipe is None
    within_noise = fastest(Machine(0.004), EITHER, 3.0, program="other", eager=Contender(lambda: 0.0039))
    assert within_noise.name == "cpu" and [t.text for t in within_noise.trials[:3]] == ["cpu", "none", EAGER]


def test_changes_are_tried_until_the_time_is_over() -> None:
    option = next(v for v in variations(CPU) if v.text.startswith("threading with work="))
    text = f"threading{{{option.text.split(' with ')[1]}}}"
    machine = Machine(0.004, {text: 0.001})
    result = fastest(machine, CPU, 600.0)
    assert [v.text for v in result.changes] == [option.text] and result.name == "cpu" and not result.untried
    assert result.recipe is not None and text in str(result.recipe)
    assert len(machine.compiled) > 5 and f"cpu ({option.text}) is the fastest" in str(result)
    short = Machine(0.004, {text: 0.001})
    result = fastest(short, CPU, 0.5, program="other")
    assert short.names == ["cpu"] and not result.changes and result.untried == len(variations(CPU))


def test_nothing_is_begun_that_would_not_end_in_time() -> None:
    machine = Machine(0.004, compiling=10.0)
    result = fastest(machine, CPU, 39.0)
    assert len(machine.compiled) == 3 and machine.now == 30.0 and result.untried == len(variations(CPU)) - 2


def test_changes_add_up() -> None:
    first, second = (v for v in variations(CPU) if v.text in ("without layout-search", "without weight-packing"))
    machine = Machine(0.004)

    def seconds(recipe: Recipe) -> Contender:
        machine(recipe)
        names = [step.name for step in recipe]
        spent = 0.001 * (2 + ("layout-search" in names) + ("weight-packing" in names))
        return Contender(lambda: spent)

    result = fastest_by(seconds, machine)
    assert result.changes == (first, second) and result.seconds == (0.004, 0.002)


def fastest_by(make: Make, machine: Machine) -> TuningResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search.time, "perf_counter", lambda: machine.now)
        return Search(TuningRecord("x", CPU), CPU, make, 600.0).find()


def test_a_recipe_that_does_not_compile_is_no_contender() -> None:
    def make(recipe: Recipe) -> Contender:
        if recipe.name == "none":
            raise Unsupported("not this one")
        return Contender(lambda: 1.0)

    result = Search(TuningRecord("x", EITHER), EITHER, make, 0.05).find()
    assert result.name == "cpu"

    def refuse(recipe: Recipe) -> Contender:
        raise Unsupported("none of them")

    with pytest.raises(Unsupported, match="none of them"):
        Search(TuningRecord("other", EITHER), EITHER, refuse, 1.0).find()


def test_what_won_by_chance_is_not_taken() -> None:
    """Faster twice, and slower when it counts."""
    turns = {"cpu": iter([4.0] * 9), "none": iter([1.0, 1.0, 5.0, 5.0])}

    def make(recipe: Recipe) -> Contender:
        return Contender(lambda: next(turns[recipe.name]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "variations", lambda recipe: [])
        result = Search(TuningRecord("x", EITHER), EITHER, make, 60.0).find()
    assert result.name == "cpu" and result.seconds == (4.0, 4.0)


def test_faster_in_too_few_rounds_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median is better, but by chance as often as not."""
    rounds = {"first": [4.0] * 8, "own": [1.0] * 5 + [5.0] * 3}
    monkeypatch.setattr(measure, "sample", lambda calls, **options: {name: rounds[name] for name in calls})
    monkeypatch.setattr(search, "variations", lambda recipe: [])
    result = fastest(Machine(4.0), EITHER, 60.0)
    assert result.name == "cpu" and result.trials[1].speedup == 4.0


def test_equal_code_runs_no_race() -> None:
    machine, races = Machine(0.004), []

    def make(recipe: Recipe) -> Contender:
        machine(recipe)
        code = "same" if "weight-packing" in str(recipe) else "other"
        return Contender(lambda: races.append(code) or 0.004, code)  # type: ignore[func-returns-value]

    result = fastest_by(make, machine)
    assert races.count("other") == 1 and {t.speedup for t in result.trials} == {1.0}


def test_a_search_that_was_killed_goes_on() -> None:
    """What was measured is known; only the first recipe, with which all are compared, is compiled again."""
    machine = Machine(0.004, {"without": 0.004})

    def killed(recipe: Recipe) -> Contender:
        if len(machine.compiled) == 4:
            raise KeyboardInterrupt
        return machine(recipe)

    with pytest.raises(KeyboardInterrupt):
        fastest_by(killed, machine)
    before, machine.compiled = machine.compiled, []
    result = fastest_by(machine, machine)
    again = [recipe for recipe in machine.compiled if recipe in before]
    assert again == [CPU] and len(result.trials) == len(variations(CPU)) + 1


def test_more_time_goes_on_where_less_had_ended() -> None:
    machine = Machine(0.004)
    short = fastest(machine, CPU, 3.0)
    assert len(short.trials) == 3 and short.untried and short.budget == 3.0
    machine.compiled = []
    assert fastest(machine, CPU, 3.0) == short and not machine.compiled, "found in the cache"
    longer = fastest(machine, CPU, 600.0)
    assert len(machine.compiled) == len(variations(CPU)) - 1 and not longer.untried
    machine.compiled = []
    assert fastest(machine, CPU, 6000.0) == longer and not machine.compiled, "there is nothing more to try"


def test_programs_and_recipes_are_told_apart() -> None:
    fastest(Machine(0.004), EITHER, 2.0)
    for other in (TuningRecord("other", EITHER), TuningRecord("x", CPU)):
        assert other.result() is None
    assert TuningRecord("x", EITHER).result() is not None


class First(Searchers):
    """The process that decides; what it says is kept."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def agree(self, value: Any) -> Any:
        self.said.append(value)
        return value


class Second(Searchers):
    """Hears what the first one said, and has its times: it is no other search."""

    def __init__(self, first: First) -> None:
        self.said, self.own = iter(first.said), list[Any]()

    def agree(self, value: Any) -> Any:
        self.own.append(value)
        return next(self.said)


def test_those_who_search_together_do_the_same(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has a slower compiler and nothing in its cache."""
    fastest(Machine(0.004), CPU, 3.0)
    first, machine = First(), Machine(0.004)
    result = fastest(machine, CPU, 6.0, searchers=first)
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(fresh_cache / "other"))
    second, slower = Second(first), Machine(0.004, compiling=4.0)
    assert fastest(slower, CPU, 6.0, searchers=second) == result
    assert slower.compiled == machine.compiled and second.own != first.said
    assert next(second.said, None) is None


def test_strategies_alone() -> None:
    machine = Machine(0.004, {"none:": 0.001})
    result = fastest(machine, EITHER, 600.0, varies=False)
    assert result.name == "none" and len(machine.compiled) == 2 and not result.untried


@pytest.fixture
def damaged() -> Iterator[TuningRecord]:
    """What was found, with a change that no recipe can have."""
    record = TuningRecord("x", CPU)
    result = fastest(Machine(0.004), CPU, 1.0)
    _RESULTS.keep(record._key, {**result.to_json(), "changes": [["x", [["__class__", [], {}]]]]})
    yield record


def test_what_the_cache_says_is_checked(damaged: TuningRecord) -> None:
    assert damaged.result() is None and damaged.result() is None
