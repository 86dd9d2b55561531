"""When the memory of results and saved arrays is idle, and who stands there then."""

from __future__ import annotations

import dace
import sympy

from daceopt.codegen.lending import SAVED_BLOCK, lifetimes
from daceopt.codegen.memory_plan import plan, residents
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder

F = dace.float32
SIZE = 4 * 32 * 32


def _turned(graph: Graph, x: str) -> str:
    """An array of its own, which cannot be written in place."""
    b = Builder(graph)
    return str(b.elementwise(lambda v: sympy.tanh(v), b.transpose(x, (1, 0))))


def _forward() -> tuple[Graph, list[str]]:
    graph = Graph("forward")
    names = [graph.add_input("x", (32, 32), F)]
    for _ in range(5):
        names.append(_turned(graph, names[-1]))
    graph.add_output(names[-1])
    return graph, names


def test_a_forward_writes_where_it_will_save_later() -> None:
    graph, names = _forward()
    graph.saved = [names[4]]
    assert lifetimes(graph, graph.saved, graph.nodes())[names[4]][0] == 3
    found = plan(graph, graph.saved, lending=True)
    assert found.arena_bytes == 0 and {loan.owner for loan in found.lent.values()} == {SAVED_BLOCK, names[5]}
    assert plan(graph, graph.saved).arena_bytes == 2 * SIZE
    assert max(r.last for r in residents(graph, graph.saved, lending=True)) == len(graph.nodes()) - 1


def test_a_backward_writes_where_it_has_read_what_was_saved() -> None:
    graph = Graph("backward")
    b = Builder(graph)
    saved = graph.add_input("t", (32, 32), F)
    graph.saved = [saved]
    g = graph.add_input("g", (32, 32), F)
    first = b.elementwise(lambda u, v: u * v, g, saved)
    second = _turned(graph, first)
    graph.add_output(b.reduce("sum", None, _turned(graph, second), axes=(0, 1)))
    found = plan(graph, graph.saved, lending=True)
    position = {n: k for k, node in enumerate(graph.nodes()) for n in graph.outputs_of(node)}
    lent = [n for n, loan in found.lent.items() if loan.owner == SAVED_BLOCK]
    assert lent and all(position[n] > position[first] for n in lent)  # not what is written while it is read
    assert found.arena_bytes < plan(graph, graph.saved).arena_bytes


def test_a_saved_array_that_is_returned_lends_nothing() -> None:
    graph, _ = _forward()
    saved = graph.add_input("t", (32, 32), F)
    graph.saved = [saved]
    assert SAVED_BLOCK in {loan.owner for loan in plan(graph, graph.saved, lending=True).lent.values()}
    graph.add_output(saved)
    assert SAVED_BLOCK not in {loan.owner for loan in plan(graph, graph.saved, lending=True).lent.values()}


def test_results_over_inputs_lend_nothing() -> None:
    graph, names = _forward()
    graph.replaced = {0: names[0]}
    assert not plan(graph, lending=True).lent
