"""Findings as recipe files, and changes of recipes as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daceopt import recipes, transformations
from daceopt.errors import DaceoptError
from daceopt.programs.tuning.result import EAGER, TuningResult, TuningTrial
from daceopt.programs.tuning.variations import Variation, variations

TRIALS = (TuningTrial("cpu", 1.0), TuningTrial('cpu, """ on a machine', 0.0), TuningTrial("apollo", 1.5))


def result(name: str = "cpu", *changes: Variation, base: str = "auto") -> TuningResult:
    return TuningResult(name, changes, (0.003, 0.002), TRIALS, 0, 10.0, base)


def test_a_finding_is_a_recipe_file(tmp_path: Path) -> None:
    best = result("cpu", *variations(recipes.get("cpu"))[:2])
    path = best.save(tmp_path / "tuned for test_result.py")
    names = transformations.load_file(path)
    assert names == ["tuned-for-test-result"] and best.recipe is not None
    assert recipes.get(names[0]).resolve() == best.recipe.resolve() != recipes.get("cpu").resolve()
    assert " 1.500 x  apollo" in path.read_text()


def test_pytorch_itself_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(DaceoptError, match="there is no recipe to save"):
        result(EAGER).save(tmp_path / "eager.py")
    assert result(EAGER).recipe is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["cpu", "gpu", "inference", "training", "apollo"])
def test_changes_change_the_recipe_and_are_data(name: str) -> None:
    recipe = recipes.get(name)
    changes = variations(recipe)
    assert changes and len({c.text for c in changes}) == len(changes)
    for change in changes:
        changed = change.on(recipe)
        assert changed.fingerprint() != recipe.fingerprint() and changed.name == name
        assert Variation.from_json(json.loads(json.dumps(change.to_json()))).on(recipe).steps == changed.steps


@pytest.mark.parametrize(
    "data", [None, [], ["text"], ["text", [["fingerprint", [], {}]]], [1, []], ["text", [["before"]]], ["text", [3]]]
)
def test_what_is_no_change_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"no change|unpack"):
        Variation.from_json(data)


def test_results_are_data() -> None:
    best = result("cpu", variations(recipes.get("cpu"))[0])
    assert TuningResult.from_json(json.loads(json.dumps(best.to_json()))) == best
