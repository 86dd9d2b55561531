"""Choosers of what to store: against all choices where these are few."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import chain, combinations

import pytest

from daceopt.autodiff import chain_storage, greedy_storage
from daceopt.autodiff.storage_choice import BY, choose
from daceopt.autodiff.storage_problem import Computation, ForwardValue, GradientNode, StorageOutcome, StorageProblem
from daceopt.autodiff.storage_program import StorageProgram


def _chain(sizes: list[int], seconds: list[float], budget: int = 10**9, joined: bool = False) -> StorageProblem:
    """x -> v1 -> v2 ...; the gradient of each reads it and the one before."""
    values = [ForwardValue("x", 0, 0, 0)]
    values += [ForwardValue(f"v{k}", n, n, n, (k,)) for k, n in enumerate(sizes)]
    forward = [Computation((k,), (k + 1,), s) for k, s in enumerate(seconds)]
    backward = [GradientNode((k + 1, k), 0, 0) for k in reversed(range(len(sizes)))]
    return StorageProblem(tuple(values), tuple(forward), tuple(backward), budget, joined=joined)


def _random(seed: int, count: int = 7) -> StorageProblem:
    """Each value is computed of one or two earlier ones; some nodes work in place, some values fuse."""
    rng = random.Random(seed)
    values, forward = [ForwardValue("x", 0, 0, 0)], []
    for k in range(count):
        size = rng.randint(1, 9)
        again = 0 if rng.random() < 0.2 else size
        reads = tuple(sorted({rng.randint(max(0, k - 2), k) for _ in range(2)}))
        values.append(ForwardValue(f"v{k}", size, again, again, (k,), rng.random() / 10))
        forward.append(Computation(reads, (k + 1,), rng.randint(1, 9), rng.random() < 0.3))
    backward = []
    for k in reversed(range(count)):
        live = rng.randint(0, 5)
        reads = tuple(sorted({k + 1, rng.randint(0, k + 1)}))
        backward.append(GradientNode(reads, live, min(live, rng.randint(0, 5)), rng.random() < 0.3))
    fixed = frozenset({rng.randint(1, count)} if rng.random() < 0.3 else ())
    return StorageProblem(tuple(values), tuple(forward), tuple(backward), 10**9, fixed, joined=rng.random() < 0.5)


def _all(problem: StorageProblem) -> list[StorageOutcome]:
    free = problem.free
    subsets = chain.from_iterable(combinations(free, n) for n in range(len(free) + 1))
    return [problem.outcome(s) for s in subsets]


def test_what_a_choice_comes_to() -> None:
    problem = _chain([10, 20, 30], [1.0, 2.0, 4.0])
    everything = problem.outcome((1, 2, 3))
    assert (everything.seconds, everything.peak, everything.again) == (0, 60, ())
    ends = problem.outcome((1, 3))
    assert (ends.seconds, ends.again) == (2.0, (1,))
    assert ends.peak == 60  # the second value is computed while the third is stored
    nothing = problem.outcome(())
    assert (nothing.seconds, nothing.peak, nothing.stored) == (7.0, 60, frozenset())
    late = problem.outcome((2, 3))
    assert late.backward_peak == 60 and late.again == (0,)


def test_of_one_program_a_stored_value_is_alive_until_its_last_reader() -> None:
    problem = _chain([10, 20, 30], [1.0, 2.0, 4.0], joined=True)
    assert problem.outcome((1, 2)).peak == 60
    assert problem.outcome((2, 3)).peak == 50  # the first is dead in the forward when the third is made
    assert problem.outcome((2, 3)).backward_peak == 50


def test_values_that_nobody_reads_are_not_stored() -> None:
    problem = replace(_chain([10, 20, 30], [1.0, 2.0, 4.0]), backward=(GradientNode((3,), 0, 0),))
    assert problem.outcome((1, 2, 3)).stored == {3}
    assert problem.outcome((1,)).stored == {1}


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("seed", range(6))
def test_choosers_fit_the_budget_and_are_not_worse_than_greedy(by: str, seed: int) -> None:
    problem = _random(seed)
    found = _all(problem)
    low, high = min(o.peak for o in found), problem.outcome(problem.free).peak
    for budget in sorted({low, (low + high) // 2, high}):
        asked = replace(problem, budget=budget)
        best = min(o.seconds for o in found if o.peak <= budget)
        chosen = choose(asked, frozenset(), by)
        greedy = choose(asked, frozenset(), "greedy")
        if chosen.outcome.peak <= budget:
            assert chosen.outcome.seconds >= best * (1 - 1e-9)
            assert chosen.bound <= best * (1 + 1e-6)  # what was proved is true of all choices
        assert greedy_storage.rank(asked, chosen.outcome) <= greedy_storage.rank(asked, greedy.outcome)
        if by == "program" and chosen.by == "program":
            assert chosen.outcome.peak <= budget


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_of_the_program_holds_for_every_choice(seed: int) -> None:
    problem = _random(100 + seed)
    found = _all(problem)
    for share in (0.3, 0.6, 1.0):
        low, high = min(o.peak for o in found), max(o.peak for o in found)
        budget = int(low + share * (high - low))
        asked = replace(problem, budget=budget)
        best = min((o for o in found if o.peak <= budget), key=lambda o: o.seconds)
        stored, bound = StorageProgram(asked).solve(best.stored, time.monotonic() + 10)
        assert bound <= best.seconds * (1 + 1e-6)
        assert stored is not None


def test_the_program_finds_the_best_of_a_chain() -> None:
    sizes, seconds = [8, 3, 9, 2, 7, 4, 6, 1], [5.0, 1, 7, 2, 8, 3, 1, 4]
    for budget in (24, 28, 34):
        problem = _chain(sizes, seconds, budget)
        best = min(o.seconds for o in _all(problem) if o.peak <= budget)
        chosen = choose(problem, frozenset(), "program")
        assert chosen.outcome.seconds == pytest.approx(best) and chosen.gap < 2e-3


def test_the_dynamic_program_takes_chains_alone_and_fits_them() -> None:
    sizes, seconds = [8, 3, 9, 2, 7, 4, 6, 1], [5.0, 1, 7, 2, 8, 3, 1, 4]
    for budget in (26, 30, 36):
        problem = _chain(sizes, seconds, budget)
        values = chain_storage.chain_of(problem)
        assert values == list(range(1, 9))
        found = chain_storage.solve(problem, values)
        best = min(o.seconds for o in _all(problem) if o.peak <= budget)
        assert found is not None and found.peak <= budget and best <= found.seconds <= 1.5 * best
    assert chain_storage.chain_of(_random(1)) is None


def test_a_long_chain_needs_about_the_root_of_its_bytes() -> None:
    problem = _chain([1] * 100, [1.0] * 100, 1)
    chosen = choose(problem, frozenset(problem.free), "greedy")
    assert chosen.outcome.peak <= 24  # 2 * 10, and what its segments share


def test_what_fits_without_a_budget_stays() -> None:
    problem = _chain([10, 20, 30], [1.0, 2.0, 4.0], 60)
    assert choose(problem, frozenset({1, 2, 3})).outcome.stored == {1, 2, 3}
