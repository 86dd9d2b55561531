"""Random graphs through steps that a user puts into a recipe, compiled, forward and backward, against float64."""

from __future__ import annotations

import pytest

from daceopt import recipes
from tests.properties.graph_checking import Case, failures

CPU = recipes.get("cpu")
EXPLORED = CPU.before("map-fusion", "fusion-exploration{budget=12}").without("map-fusion")
REPLICATED = CPU.before("tasklet-fusion", "map-replication", "on-the-fly-fusion{recompute=3.0}")
ON_THE_FLY = CPU.before("map-fusion", "on-the-fly-fusion")
TAKEN_APART = CPU.after("map-fusion", "map-fission")
TILED = CPU.before("threading", "map-tiling{size=3}") + "map-tiling{size=2}"
STEPS = {
    "explored": EXPLORED,
    "replicated": REPLICATED,
    "on the fly": ON_THE_FLY,
    "taken apart": TAKEN_APART,
    "tiled": TILED,
}
BATCH = 4


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "small") for name in STEPS), ("explored", "open"), ("on the fly", "open")]
)
def test_random_graphs(name: str, kind: str) -> None:
    cases = [Case(9000 + seed, kind, backward=True) for seed in range(BATCH)]
    found = failures(cases, STEPS[name])
    assert not found, f"{len(found)} of {len(cases)} graphs:\n" + "\n".join(found[:5])
