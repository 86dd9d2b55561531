"""Budgets as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from daceopt import optimized_module, recipes, training_step
from daceopt.autodiff.storage_predicates import ForwardArray
from daceopt.errors import DaceoptError
from daceopt.passes.memory_budget import check, resolve


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(1000, 1000), ("60%", 600), (" 12.5 % ", 125), ("3kB", 3000), ("1.5MiB", 1572864), ("2 GB", 2 * 10**9), ("7", 7)],
)
def test_bytes_of_a_budget(budget: Any, expected: int) -> None:
    check("memory_budget", budget)
    assert resolve(budget, lambda: 1000) == expected


@pytest.mark.parametrize("budget", ["sixty", -1, 0, "0%", "", "60 %%", "-5%", "3 apples", "nan"])
def test_what_is_no_budget(budget: Any) -> None:
    with pytest.raises(ValueError, match="memory_budget=.*expected None, a percentage such as '60%'"):
        check("memory_budget", budget)


@pytest.mark.parametrize("budget", [True, 0.6, [1], b"60%"])
def test_what_has_the_wrong_type(budget: Any) -> None:
    with pytest.raises(TypeError, match="memory_budget=.*expected None, a percentage.*not"):
        check("memory_budget", budget)


def test_options_are_looked_at_at_once() -> None:
    with pytest.raises(ValueError, match="memory_budget='sixty'; expected"):
        optimized_module(memory_budget="sixty")
    with pytest.raises(ValueError, match="memory_budget='sixty'; expected"):
        training_step(None, None, None, memory_budget="sixty")  # type: ignore[arg-type]
    with pytest.raises(DaceoptError, match="budget='sixty'; expected"):
        recipes.get("cpu").within("sixty")
    with pytest.raises(DaceoptError, match="recompute='relu' of differentiate; expected a list of names"):
        recipes.get("cpu").with_options("differentiate", recompute="relu")
    with pytest.raises(DaceoptError, match="by='luck' of differentiate; expected one of"):
        recipes.get("cpu").with_options("differentiate", by="luck")


def _is_wide(array: ForwardArray) -> bool:
    return array.shape[-1] > 100


def _is_tall(array: ForwardArray) -> bool:
    return array.shape[0] > 100


def test_a_share_needs_something_that_it_is_of() -> None:
    with pytest.raises(DaceoptError, match="not known here; give bytes"):
        resolve("60%", None)


def test_the_budget_is_a_part_of_the_recipe() -> None:
    plain = recipes.get("cpu")
    prints = {r.fingerprint() for r in (plain, plain.within("60%"), plain.within("50%"), plain.within(1000))}
    assert len(prints) == 4
    assert plain.budget is None and plain.within("60%").budget == "60%"
    assert recipes.get("none").within(1000).budget == 1000  # which has no such step by itself
    by_function = [plain.with_options("differentiate", recompute=[which]) for which in (_is_wide, _is_tall, _is_wide)]
    assert str(by_function[0]).count("{recompute=(_is_wide,)}") == 1
    first, other, again = (r.fingerprint() for r in by_function)
    assert first == again != other  # by their code, not by where they stand in memory
    with pytest.raises(DaceoptError, match="recompute='@cheap' of differentiate; expected one of @elementwise, "):
        plain.with_options("differentiate", recompute=["@cheap"])
    text = str(plain.with_options("differentiate", recompute=["a*"], store=["b"]))
    assert "differentiate{store=('b',), recompute=('a*',)}" in text
