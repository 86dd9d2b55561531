"""Random graphs through steps that a user puts into a recipe, compiled, forward and backward, against float64."""

from __future__ import annotations

import pytest

from daceopt import recipes
from daceopt.passes.recipe import Recipe
from tests.properties.graph_checking import Case, failures

CPU = recipes.get("cpu")
EXPLORED = CPU.before("map-fusion", "fusion-exploration{budget=12}").without("map-fusion")
REPLICATED = CPU.before("tasklet-fusion", "map-replication", "on-the-fly-fusion{recompute=3.0}")
ON_THE_FLY = CPU.before("map-fusion", "on-the-fly-fusion")
TAKEN_APART = CPU.after("map-fusion", "map-fission")
TILED = CPU.before("threading", "map-tiling{size=3}") + "map-tiling{size=2}"
BATCH = 12


@pytest.mark.parametrize("kind", ["small", "open"])
@pytest.mark.parametrize("recipe", [EXPLORED, REPLICATED, ON_THE_FLY, TAKEN_APART, TILED], ids=str)
def test_random_graphs(kind: str, recipe: Recipe) -> None:
    cases = [Case(9000 + seed, kind, backward=True) for seed in range(BATCH)]
    found = failures(cases, recipe)
    assert not found, f"{len(found)} of {len(cases)} graphs:\n" + "\n".join(found[:5])
