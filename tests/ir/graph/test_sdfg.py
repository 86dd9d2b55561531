"""Graphs in DaCe's words are valid for DaCe, whatever stands in them, and leave the graph as it is."""

from __future__ import annotations

import dace
import pytest
from dace import nodes

from daceopt.ir.graph import validation
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.sdfg import GraphSdfg, expand, sdfg_of
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.symbols import size
from daceopt.ir.text.render import render
from daceopt.recipes.cpu import cpu
from tests.ir.control.test_region import running_sum

F = dace.float32


def views_and_parts() -> Graph:
    """A view of an input of open size, an array of two parts, a number, and an input that nothing reads."""
    n = size("n")
    graph = Graph("views")
    x, s = graph.add_input("x", (n, 4), F), graph.add_input("s", (), F)
    graph.add_input("unused", (3,), F)
    graph.symbols["n"] = (x, 0)
    b = Builder(graph)
    whole = graph.add_array("whole", (n, 8), F)
    halves = [graph.add_part(whole, "half", (0, 4 * k), (n, 4)) for k in range(2)]
    b.elementwise(lambda a, c: a * c, x, s, out=halves[0])
    b.elementwise(lambda a: a + 1, graph.add_view(x, "same", (n, 4), (4, 1)), out=halves[1])
    graph.add_output(whole)
    return graph


def fused() -> Graph:
    """A kernel of several statements with locals, beside a library call."""
    graph = Graph("fused")
    x, w = graph.add_input("x", (6, 4), F), graph.add_input("w", (4, 5), F)
    y, z = graph.add_array("y", (6, 5), F), graph.add_array("z", (6, 5), F)
    graph.add_operator("MatMul", [x, w], [y])
    graph.add_operator("Softmax", [y], [z], {"axis": -1})
    graph.add_output(z)
    cpu.run(graph)
    return graph


@pytest.mark.parametrize("make", [views_and_parts, fused, running_sum])
@pytest.mark.parametrize("written", [sdfg_of, expand])
def test_dace_takes_it(make, written) -> None:  # type: ignore[no-untyped-def]
    graph = make()
    before = render(graph)
    made: GraphSdfg = written(graph)
    made.sdfg.validate()
    assert {d for d in made.sdfg.arrays if graph.has(d)} == set(graph.arrays())
    assert set(made.original.values()) == set(graph.compute())
    assert render(graph) == before


def test_kernels_are_library_nodes_or_map_scopes() -> None:
    graph = fused()
    assert any(isinstance(n, KernelNode) for n in sdfg_of(graph).state.nodes())
    made = expand(graph)
    assert not any(isinstance(n, KernelNode) for n in made.state.nodes())
    scopes = [n for n in made.original if isinstance(n, nodes.MapEntry)]
    assert [made.original[n] for n in scopes] == graph.kernels()
    kernel: Kernel = graph.kernels()[0].kernel
    assert kernel.locals.keys() <= made.sdfg.arrays.keys()


def test_a_part_is_copied_into_its_box() -> None:
    graph = views_and_parts()
    made = sdfg_of(graph)
    (whole,) = (n for n in made.state.data_nodes() if n.data == graph.outputs[0])
    assert [str(e.data.dst_subset) for e in made.state.in_edges(whole)] == ["0:n, 0:4", "0:n, 4:8"]
    validation.check_parts(graph, graph.outputs[0])


@pytest.mark.parametrize("make", [views_and_parts, fused])
def test_dace_expands_kernels_into_map_scopes(make) -> None:  # type: ignore[no-untyped-def]
    """Those that ``expand`` makes, in nested SDFGs over the node's connectors."""
    graph = make()
    made = sdfg_of(graph.copy())
    for node in [n for n in made.state.nodes() if isinstance(n, KernelNode)]:
        node.expand(made.sdfg, made.state)
    made.sdfg.validate()
    nested = [n.sdfg for n in made.state.nodes() if isinstance(n, nodes.NestedSDFG)]
    scopes = [n.map for s in nested for n, _ in s.all_nodes_recursive() if isinstance(n, nodes.MapEntry)]
    direct = [n.map for n in expand(graph).state.nodes() if isinstance(n, nodes.MapEntry)]
    assert sorted(map(str, scopes)) == sorted(map(str, direct)) != []
