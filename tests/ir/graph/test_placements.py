"""Placements: checked when they are set, kept by copies and texts, gone with their arrays."""

from __future__ import annotations

import dace
import pytest
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.placements import Placement
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render


def chain() -> tuple[Graph, str, str]:
    graph = Graph("chain")
    b = Builder(graph)
    x = graph.add_input("x", (8, 6), dace.float32)
    h = b.elementwise(lambda v: sympy.exp(v), x)
    y = b.elementwise(lambda v: sympy.tanh(v), h)
    graph.add_output(y)
    return graph, h, y


def test_they_survive_copies_and_text() -> None:
    graph, h, y = chain()
    graph.placements = {h: Placement("local", (8, 1)), y: Placement("memory")}
    assert graph.copy().placements == graph.placements
    text = render(graph)
    assert f"place {h} local [8, 1]\n  place {y} memory []" in text
    assert render(parse(text)) == text and parse(text).placements == graph.placements
    assert Placement("local", (4, 2)).cores == 8


def test_a_copy_is_independent() -> None:
    graph, h, _ = chain()
    twin = graph.copy()
    twin.placements = {h: Placement("shared")}
    assert not graph.placements


def test_they_go_with_their_arrays() -> None:
    graph, h, y = chain()
    graph.placements = {h: Placement("local"), y: Placement("shared")}
    for node in graph.nodes():
        graph.remove(node)
    graph.outputs.clear()
    graph.prune()
    assert not graph.placements


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement("register"), "'register' is none of local, shared, memory"),
        (Placement("local", (8,)), r"binding \(8,\); expected 2 whole numbers"),
        (Placement("local", (0, 1)), r"binding \(0, 1\); expected 2"),
    ],
)
def test_nonsense_is_refused(placement: Placement, message: str) -> None:
    graph, h, _ = chain()
    with pytest.raises(ValueError, match=message):
        graph.placements = {h: placement}
    with pytest.raises(ValueError, match="no array of the graph"):
        graph.placements = {"nothing_1": Placement("local")}
