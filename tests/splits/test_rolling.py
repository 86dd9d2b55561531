"""Instances of any sub-graph as a loop: what they compute together is what the nodes computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.codegen import region_bounds
from daceopt.ir.control.region import Repeat, regions, tidy
from daceopt.ir.data.arrays import SEED
from daceopt.ir.fusion.clusters import Clusters
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes import library
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.symbols import size
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.ops import lower_all
from daceopt.splits import CannotSplit
from daceopt.splits.along import NodeCut, SplitAxis, split_axes
from daceopt.splits.rolling import roll, why_not_together
from daceopt.splits.sums import cut_or_sum
from tests.properties.graphs import NOMINAL, Maker
from transformations.local.map_fusion import MapFusion

F = dace.float32


def _cuts(graph: Graph, axis: SplitAxis) -> dict[Any, NodeCut]:
    found = {}
    for node in graph.nodes():
        try:
            found[node] = cut_or_sum(graph, node, axis)
        except CannotSplit:
            continue
    return found


def _clusters(graph: Graph, cuts: dict[Any, NodeCut], rng: np.random.Generator) -> list[list[Any]]:
    """Convex sets of nodes that are cut, grown at random."""
    edges = [(p, n) for n in graph.nodes() for a in graph.inputs_of(n) if a for p in graph.producers(a)]
    after: dict[Any, list[Any]] = {n: [] for n in graph.nodes()}
    for p, n in edges:
        after[p].append(n)
    clusters = Clusters(after)
    for k in rng.permutation(len(edges)):
        one, other = edges[k]
        if {one, other} <= cuts.keys() and clusters.leader(one) != clusters.leader(other):
            together = [*clusters.members(one), *clusters.members(other)]
            free = rng.random() < 0.8 and clusters.obstacle(one, other) is None
            if free and why_not_together(graph, together, cuts) is None:
                clusters.merge(one, other)
    order = graph.nodes()
    found = [sorted(clusters.members(leader), key=order.index) for leader in clusters]
    return [members for members in found if set(members) <= cuts.keys()]


def _values(graph: Graph, items: int = NOMINAL) -> dict[str, Any]:
    rng = np.random.default_rng(3)

    def extent(e: Any) -> int:
        return e if isinstance(e, int) else int(e.subs(dict.fromkeys(e.free_symbols, items)))

    found = {n: rng.standard_normal([extent(e) for e in graph.shape(n)]) for n in graph.inputs}
    return found | ({SEED: np.array([77])} if graph.uses_seed else {})


def _same(before: Graph, after: Graph, values: dict[str, Any]) -> None:
    one, other = interpret(before, values, np.float64), interpret(after, values, np.float64)
    for a, b in zip(before.outputs, after.outputs, strict=True):
        np.testing.assert_allclose(other[b], one[a], rtol=1e-13, atol=1e-13)


def _finish(graph: Graph) -> None:
    graph.prune()
    tidy(graph)
    graph.validate()
    region_bounds.check(graph)


def _rolled(graph: Graph, instance: int, items: Sequence[int] = (NOMINAL,)) -> tuple[Graph, list[Repeat]]:
    """All nodes of a copy that are cut along its first axis, in one loop; compared with the graph."""
    twin = graph.copy()
    axis = split_axes(twin)[0]
    cuts = _cuts(twin, axis)
    made = roll(twin, list(cuts), cuts, axis, instance)
    _finish(twin)
    for count in items:
        _same(graph, twin, _values(graph, count))
    return twin, made


@pytest.mark.parametrize("kind", ["small", "open", "empty"])
@pytest.mark.parametrize("seed", range(25))
def test_any_sub_graphs_of_a_random_graph(seed: int, kind: str) -> None:
    graph, rng = Maker(seed, kind).build(), np.random.default_rng(seed)
    lower_all(graph)
    if seed % 2:
        MapFusion().run(graph)
    twin = graph.copy()
    for axis in [a for a in split_axes(twin) if isinstance(a.items, int) or a.items.is_Symbol][:1]:
        cuts = _cuts(twin, axis)
        for members in _clusters(twin, cuts, rng):
            if any(n not in twin for n in members):
                continue
            names = {n for m in members for n in twin.inputs_of(m) if n}
            if all(cuts[m].sliced <= names for m in members):
                most = axis.items if isinstance(axis.items, int) else NOMINAL
                roll(twin, members, cuts, axis, int(rng.integers(1, max(most, 2))))
    _finish(twin)
    _same(graph, twin, _values(graph))


def _convolutional(n: Any) -> Graph:
    """A convolution, what is read of it in the sub-graph and around it, a product, and a sum over the batch."""
    graph = Graph("net")
    b = Builder(graph)
    x, w = graph.add_input("x", (n, 3, 5, 5), F), graph.add_input("w", (4, 3, 3, 3), F)
    if not isinstance(n, int):
        graph.symbols[str(n)] = (x, 0)
    y = graph.add_array("y", (n, 4, 5, 5), F)
    b.library(library.Convolution, {"X": x, "W": w}, {"Y": y}, pads=[1, 1, 1, 1])
    z = b.elementwise(lambda v: sympy.tanh(v), y)
    rows = b.reduce("sum", None, z, axes=(2, 3))
    graph.add_output(rows)
    graph.add_output(b.matmul(rows, graph.add_input("v", (4, 6), F)))
    graph.add_output(b.reduce("sum", None, z, axes=(0,)))
    return graph


@pytest.mark.parametrize(("items", "instance", "loops"), [(8, 2, 1), (8, 8, 1), (7, 3, 2), (5, 4, 2), (6, 1, 1)])
def test_a_network_whose_batch_may_not_be_divisible(items: int, instance: int, loops: int) -> None:
    twin, made = _rolled(_convolutional(items), instance)
    assert len(made) == loops == len(regions(twin))
    assert made[0].trips == items // instance
    assert len(twin.nodes()) == loops + 1  # the sum over the batch begins as zeros
    assert all(len(loop.carried) == 1 for loop in made)


@pytest.mark.parametrize(("items", "instance"), [(6, 2), (7, 3)])
@pytest.mark.parametrize("kept", [True, False])
def test_a_result_that_consists_of_parts(items: int, instance: int, kept: bool) -> None:
    """Its parts are parts in the body, too: what reads the whole there comes after their writers."""
    graph = Graph("parts")
    b, x = Builder(graph), graph.add_input("x", (items, 3), F)
    whole = graph.add_array("whole", (items, 7), F)
    one = b.elementwise(lambda v: v + 1, x, out=graph.add_part(whole, "one", [0, 0], [items, 3]))
    b.elementwise(lambda v: v * 2, x, out=graph.add_part(whole, "two", [0, 3], [items, 3]))
    last = graph.add_part(whole, "last", [0, 6], [items, 1])
    b.reduce("sum", None, one, axes=(1,), keepdims=True, out=last)
    graph.add_output(b.elementwise(lambda v: v * v, whole))
    if kept:
        graph.add_output(whole)
    _rolled(graph, instance)


def test_what_is_no_size_is_refused() -> None:
    graph = Graph("rows")
    x = graph.add_input("x", (2 * size("n"), 3), F)
    graph.add_output(Builder(graph).elementwise(lambda v: v + 1, x))
    axis = split_axes(graph)[0]
    before = render(graph)
    with pytest.raises(CannotSplit, match=r"2\*n items: expected a number of items, or a size"):
        roll(graph, graph.nodes(), _cuts(graph, axis), axis, 4)
    assert render(graph) == before


def test_a_node_that_reads_all_of_what_another_writes_is_in_no_loop_with_it() -> None:
    graph = Graph("mixed")
    b = Builder(graph)
    x, w = graph.add_input("x", (6, 3), F), graph.add_input("w", (3, 6), F)
    y = b.elementwise(lambda v: v + 1, x)
    graph.add_output(b.matmul(b.matmul(x, w), y))
    axis = next(a for a in split_axes(graph) if {x, y} <= a.dims.keys() and a.dims[x] == 0)
    cuts = _cuts(graph, axis)
    assert len(cuts) == 3
    with pytest.raises(CannotSplit, match="reads all of"):
        roll(graph, list(cuts), cuts, axis, 2)
    twin = graph.copy()
    products = [n for n in twin.nodes() if isinstance(n, library.Contraction)]
    roll(twin, products, _cuts(twin, axis), axis, 2)
    _finish(twin)
    _same(graph, twin, _values(graph))


def test_a_batch_of_open_size() -> None:
    twin, made = _rolled(_convolutional(size("n")), 4, (0, 1, 3, 4, 8, 11))
    assert len(made) == 2
    assert str(made[0].trips) == "floor(n/4)"
    again = parse(render(twin, large := {}), large)
    _same(twin, again, _values(twin, 7))
    assert render(again) == render(twin)
