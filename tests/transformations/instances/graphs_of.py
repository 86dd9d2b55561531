"""What the tests ask of graphs that were split: their instances by letters, and their numbers."""

from __future__ import annotations

import numpy as np

import daceopt.ops  # noqa: F401  (how library nodes are executed)
from daceopt.cost.machines import MachineModel
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from transformations.instances.instance_grouping import InstanceGrouping
from transformations.instances.instance_splitting import InstanceSplitting

RELATIVE = 1e-11  # of float64: a library adds the parts of a sum in another order


def feeds(graph: Graph, size: int = 5) -> dict[str, np.ndarray]:
    """Random inputs; ``size`` for those that are open."""
    rng = np.random.default_rng(3)
    shapes = {
        n: [e if isinstance(e, int) else int(e.subs(dict.fromkeys(e.free_symbols, size))) for e in graph.shape(n)]
        for n in graph.inputs
    }
    return {n: 0.3 * rng.standard_normal(shape) for n, shape in shapes.items()}


def values(graph: Graph) -> list[np.ndarray]:
    found = interpret(graph, feeds(graph), np.float64)
    return [found[n] for n in graph.outputs]


def assert_same(graph: Graph, expected: list[np.ndarray]) -> None:
    for ours, theirs in zip(values(graph), expected, strict=True):
        bound = RELATIVE * max(1.0, float(np.abs(theirs).max(initial=0.0)))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


def split(graph: Graph, machine: MachineModel, buffer: str = "local") -> Graph:
    """Grouped and split, and compared with what it was."""
    expected = values(graph)
    InstanceGrouping(machine=machine, buffer=buffer).run(graph)
    InstanceSplitting().run(graph)
    graph.validate()
    assert_same(graph, expected)
    return graph


def letters(graph: Graph) -> str:
    """The order of execution: a sub-graph is a letter, its instances are numbered from 1."""
    where = graph.instance_positions()
    found = dict.fromkeys(where[node] for node in graph.nodes())
    return " ".join(f"{'abcdefgh'[group]}{k + 1}" for group, k in found)
