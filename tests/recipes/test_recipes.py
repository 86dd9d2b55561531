"""Every recipe that ships resolves, is in order, and prints back as it was written."""

from __future__ import annotations

import pytest

from daceopt import recipes
from daceopt.errors import DaceoptError
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.programs.tuning.result import alternatives
from tests.transformations.graphs import Net

SHIPPED = ("apollo", "auto", "cpu", "disco", "graphturbo", "inference", "none", "training")


def test_names() -> None:
    assert {*SHIPPED} <= set(recipes.names())
    with pytest.raises(DaceoptError, match="no recipe is called 'fast'; there are: apollo, auto, cpu"):
        recipes.get("fast")


@pytest.mark.parametrize("name", SHIPPED)
def test_steps_exist_and_are_in_order(name: str) -> None:
    recipe = recipes.get(name)
    assert [str(s) for s in recipe.resolve()] == list(recipe.steps)
    for one in alternatives(recipe):
        assert Recipe(name, tuple(map(str, one))).fingerprint() == one.fingerprint()
    assert len(recipe.before_differentiation()) + len(recipe.after_differentiation()) == len(recipe) - 1


def test_fingerprints_differ() -> None:
    cpu = recipes.get("cpu")
    assert len({cpu.fingerprint(), cpu.without("map-fusion").fingerprint(), recipes.get("none").fingerprint()}) == 3


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "auto"])
def test_the_numbers_hold_step_by_step(name: str) -> None:
    """A network with a decomposed softmax and layer norm goes through the whole recipe, checked after every step."""
    import numpy as np

    net = Net(x=(4, 8), w=(8, 8), gamma=(8,), beta=(8,))
    h = net.op("MatMul", net.x, net.w, shape=(4, 8))
    mean = net.op("ReduceMean", h, net.const([1], np.int64), shape=(4, 1))
    d = net.op("Sub", h, mean)
    variance = net.op("ReduceMean", net.op("Mul", d, d), net.const([1], np.int64), shape=(4, 1))
    normal = net.op("Div", d, net.op("Sqrt", net.op("Add", variance, net.const(1e-5))))
    e = net.op("Exp", net.op("Add", net.op("Mul", normal, net.gamma), net.beta))
    y = net.op("Div", e, net.op("ReduceSum", e, net.const([1], np.int64), shape=(4, 1)))
    graph = net.done(y)
    history = Runner(recipes.get(name), "numerics").run(graph)
    assert not graph.operators()
    assert all(step.error is not None and step.error < 1e-5 for step in history)
