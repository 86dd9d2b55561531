"""Algorithm 4 of GraphTurbo on small graphs, by hand."""

from __future__ import annotations

import dace
import sympy
from hypothesis import given, settings

from daceopt.cost import machines
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.placements import Placement
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.transform import Transformation
from tests.strategies import graphs
from tests.transformations.lowered import apply
from transformations.instances.core_binding import CoreBinding

F = dace.float32
STCP = CoreBinding(machine="stcp920")


def test_what_agrees_stays_local() -> None:
    graph = Graph("chain")
    b, x = Builder(graph), graph.add_input("x", (16, 8), F)
    h = b.elementwise(lambda v: sympy.tanh(v), x)
    y = b.elementwise(lambda v: sympy.exp(v), h)
    graph.add_output(y)
    assert apply(STCP, graph).sites == ["1 in local, 0 in shared, 1 in memory, 8 cores"]
    assert graph.placements == {h: Placement("local", (8, 1)), y: Placement("memory", (8, 1))}


def test_readers_that_ask_for_different_bindings_share() -> None:
    graph = Graph("disagreeing")
    b, x = Builder(graph), graph.add_input("x", (8, 8), F)
    h = b.elementwise(lambda v: sympy.tanh(v), x)
    graph.add_output(b.elementwise(lambda v: sympy.exp(v), h))
    graph.add_output(b.elementwise(lambda v: sympy.exp(v), b.transpose(h, (1, 0))))
    apply(STCP, graph)
    assert graph.placements[h] == Placement("shared", (8, 1))


def test_a_binding_that_leaves_cores_idle_is_not_taken() -> None:
    """The reader has 2 rows; what it reads has 8."""
    graph = Graph("slice")
    b, x = Builder(graph), graph.add_input("x", (8, 3), F)
    h = b.elementwise(lambda v: sympy.tanh(v), x)
    graph.add_output(b.elementwise(lambda v: sympy.exp(v), b.slice(h, (0, 0), (2, 3))))
    apply(STCP, graph)
    assert graph.placements[h] == Placement("shared", (8, 1))


def test_a_sum_over_all_asks_for_nothing() -> None:
    graph = Graph("sum")
    b, x = Builder(graph), graph.add_input("x", (8, 16), F)
    h = b.elementwise(lambda v: sympy.tanh(v), x)
    graph.add_output(b.reduce("sum", None, h, axes=(0, 1)))
    apply(STCP, graph)
    assert graph.placements[h] == Placement("local", (8, 1))


def test_by_default_for_the_machine_that_is_assumed() -> None:
    graph = Graph("assumed")
    graph.add_output(Builder(graph).elementwise(lambda v: v + 1, graph.add_input("x", (1216, 2), F)))
    with machines.assume(machines.get("ipu")):
        assert CoreBinding().run(graph).sites == ["0 in local, 0 in shared, 1 in memory, 1216 cores"]
    assert str(Transformation.parse(str(STCP))) == "core-binding{machine='stcp920'}"


@settings(max_examples=30)
@given(graphs(2, 14))
def test_bindings_fit_the_cores(graph: Graph) -> None:
    STCP.run(graph)
    assert not STCP.run(graph).sites
    for name, placement in graph.placements.items():
        assert 1 <= placement.cores <= 8 and len(placement.binding) == len(graph.shape(name))
        for extent, factor in zip(graph.shape(name), placement.binding):
            assert factor == 1 or extent % factor == 0
        assert placement.level == "memory" or not graph.is_kept(name)
