"""Gradients of a graph before and after a rewrite that stands before differentiation."""

from __future__ import annotations

import numpy as np

from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import types
from tests.numerics import assert_within_rounding
from tests.properties.graph_checking import reference

ULPS = 256.0  # of float64: gradients are added up in another order


def assert_same_gradients(before: Graph, after: Graph) -> None:
    """In float64 both give the same results and the same gradients of all inputs."""
    rng = np.random.default_rng(3)
    given = {f"input:{k}": _values(rng, before, n) for k, n in enumerate(before.inputs)}
    given |= {f"grad:{k}": _values(rng, before, n) for k, n in enumerate(before.outputs)}
    expected, found = (reference(g, given, True, np.float64) for g in (before, after))
    assert expected.keys() == found.keys() and any(role.startswith("grad_input") for role in found)
    for role, value in expected.items():
        assert_within_rounding(np.append(found[role], 1.0), np.append(value, 1.0), ulps=ULPS)


def _values(rng: np.random.Generator, graph: Graph, name: str) -> np.ndarray:
    assert name != SEED
    return rng.standard_normal([int(n) for n in graph.shape(name)]).astype(types.to_numpy(graph.dtype(name)))
