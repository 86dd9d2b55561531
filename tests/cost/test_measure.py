"""Functions that take turns under one clock."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest

from daceopt.cost import measure


def test_what_giving_memory_back_takes_belongs_to_who_took_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Result:
        """Ten seconds to give back."""

        def __del__(self) -> None:
            nonlocal now
            now += 10.0

    def quick() -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now)
    found = measure.sample({"large": Result, "quick": quick}, seconds=0.0, warmup=1, at_least=3)
    assert found == {"large": [10.0] * 3, "quick": [1.0] * 3}


def test_a_function_may_tell_its_own_time() -> None:
    found = measure.sample({"told": lambda: measure.Elapsed(3.0)}, seconds=0.0, warmup=0, at_least=2)
    assert found == {"told": [3.0, 3.0]}


def test_each_function_follows_each_other_one() -> None:
    called: list[str] = []
    functions = {name: lambda name=name: called.append(name) for name in "abc"}
    rounds = measure.sample(functions, seconds=0.0, warmup=0, at_least=30)
    assert {len(values) for values in rounds.values()} == {30}
    assert {(a, b) for a, b in pairwise(called) if a != b} == set(permutations("abc", 2))
