"""Random graphs of operators: coarse rewrites keep results and gradients, alone and in the order of the recipe."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from daceopt import transformations
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.passes.feeds import random_inputs
from daceopt.passes.transform import Transformation
from daceopt.recipes.cpu import ALGEBRA, CLEANUP, LIFTING
from tests.numerics import assert_within_rounding
from tests.properties.graph_checking import reference
from tests.properties.operator_graphs import OperatorMaker

ULPS = (
    64.0  # of float32: conversions in a graph round, and attributes are float32, whatever the interpreter computes in
)
SEEDS = range(5)
OPTIONS = {"horizontal-product-fusion": {"copied": 100.0}, "vertical-einsum-fusion": {"products": True}}


@cache
def steps() -> tuple[Transformation, ...]:
    names = dict.fromkeys((*CLEANUP, *LIFTING, *ALGEBRA))
    return tuple(transformations.get(name, **OPTIONS.get(name, {})) for name in names)


def values(graph: Graph) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        found = interpret(graph, random_inputs(graph), np.float64)
    return [np.asarray(found[name]) for name in graph.outputs]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)


def assert_close(a: np.ndarray, b: np.ndarray) -> None:
    """Beside values of order one."""
    assert_within_rounding(np.append(a, 1.0).astype(np.float32), np.append(b, 1.0), ulps=ULPS)


def check_each(seed: int) -> Counter[str]:
    """Each rewrite alone, then all in turn; how often each found something."""
    sites: Counter[str] = Counter()
    graph = OperatorMaker(seed).build()
    expected = values(graph)
    for step in steps():
        alone = graph.copy()
        sites[step.name] += len(step.run(alone).sites)
        alone.validate()
        if sites[step.name]:
            assert_same(values(alone), expected)
    whole = graph.copy()
    for step in steps():
        step.run(whole)
        whole.validate()
    assert_same(values(whole), expected)
    check_gradients(seed, graph, whole)
    return sites


def check_gradients(seed: int, before: Graph, after: Graph) -> None:
    rng = np.random.default_rng(seed)
    given = {f"input:{k}": rng.standard_normal(before.shape(n)) for k, n in enumerate(before.inputs)}
    given |= {f"grad:{k}": rng.standard_normal(before.shape(n)) for k, n in enumerate(before.outputs)}
    found = [
        reference(g, {k: v.astype(np.float32) for k, v in given.items()}, True, np.float64) for g in (after, before)
    ]
    roles = sorted({*found[0], *found[1]})
    zero = np.zeros(())
    for role in roles:  # an input that nothing depends on has no gradient, or zeros
        ours, theirs = (f.get(role, zero) for f in found)
        assert_close(*np.broadcast_arrays(ours, theirs))


def test_random_graphs_keep_their_values() -> None:
    for seed in SEEDS:
        check_each(seed)


@pytest.mark.fuzz
def test_thousands_of_random_graphs() -> None:
    """And every rewrite that they are made for finds something."""
    sites: Counter[str] = Counter()
    for seed in range(1000):
        sites += check_each(seed)
    wanted = {"relayout-chain-fusion", "rotary-lifting", "attention-lifting", "grouped-query-lifting", "silu-lifting"}
    wanted |= {"mish-lifting", "einsum-lifting", "vertical-einsum-fusion", "horizontal-product-fusion", "pool-removal"}
    wanted |= {"stack-reduction"}
    assert wanted | {"algebraic-simplification", "cast-removal"} <= {name for name, count in sites.items() if count}
