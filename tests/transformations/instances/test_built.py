"""Instances as compiled code: in their order, in parts of parts, with halos of their own and kept ones."""

from __future__ import annotations

import numpy as np
import pytest

import daceopt.ops  # noqa: F401  (how library nodes are executed)
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.ir.interpreter.interpret import interpret
from tests.transformations.instances.networks import Network
from tests.transformations.lowered import compiled
from transformations.instances.instance_ordering import InstanceOrdering
from transformations.instances.instance_splitting import InstanceSplitting


def _network(halos: str) -> tuple[Graph, list[np.ndarray], dict[str, np.ndarray]]:
    """Images, then rows of them, then images again."""
    net = Network(4, 3, 16, 8)
    first = net.relu(net.x)
    rows = net.conv(first, 4, 3)
    pooled = net.pool(net.relu(rows), 3, 2)
    total = net.b.reduce("sum", None, pooled, axes=(2, 3))
    last = net.linear(total, 5)
    graph = net.done(last)
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}
    expected = list(interpret(graph, inputs, np.float64).values())
    (inner,) = (n for n in graph.arrays() if graph.shape(n) == graph.shape(rows) and n != rows)
    graph.sub_graphs = [
        SubGraph({first: 0}, 4),
        SubGraph({rows: 2, inner: 2, pooled: 2}, 4, halos=halos),
        SubGraph({total: 0, last: 0}, 2),
    ]
    InstanceSplitting().run(graph)
    InstanceOrdering(by="dfs").run(graph)
    graph.validate()
    return graph, expected, inputs


@pytest.mark.parametrize("halos", ["recomputed", "kept"])
def test_what_is_built_computes_what_the_graph_says(halos: str) -> None:
    graph, (expected,), inputs = _network(halos)
    assert len(graph.nodes()) == 4 + 3 * 4 + 2 * 2
    ((found,),) = compiled(f"instances with halos {halos}", [graph], given=[inputs])
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() <= 2e-6 * scale  # sums of 64 float32 products
