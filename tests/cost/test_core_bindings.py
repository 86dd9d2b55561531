"""Bindings to cores: plain ones, and what readers ask of writers (section 3.4 of GraphTurbo)."""

from __future__ import annotations

import dace
import pytest
import sympy

import daceopt.ops  # noqa: F401  (says which loop nests library nodes are)
from daceopt.cost.core_bindings import infer, plain
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution
from daceopt.splits import split

F = dace.float32


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((32, 64, 56, 56), None, (8, 1, 1, 1)),
        ((2, 64, 56, 56), None, (2, 4, 1, 1)),
        ((2, 64, 56, 56), (64 * 56 * 56, 1, 64 * 56, 64), (2, 1, 4, 1)),  # channels last: rows before channels
        ((6, 12), None, (2, 4)),
        ((7, 5), None, (1, 1)),
        ((1, 1024), None, (1, 8)),
    ],
)
def test_plain(shape: tuple[int, ...], strides: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    graph = Graph("plain")
    assert plain(graph, graph.add_array("x", shape, F, strides), 8) == expected


def test_an_open_extent_gets_one_core() -> None:
    graph = Graph("open")
    n = dace.symbolic.symbol("n", dace.int64)
    assert plain(graph, graph.add_array("x", (n, 16), F), 8) == (1, 8)


def convolved(size: int = 8, **attributes: list[int]) -> tuple[Graph, str, str]:
    graph = Graph("conv")
    x, w = graph.add_input("x", (2, 4, size, size), F), graph.add_input("w", (8, 4, 3, 3), F)
    h = Builder(graph).elementwise(lambda v: sympy.tanh(v), x)
    out = (size + 1) // attributes.get("strides", [1])[0]
    y = graph.add_array("y", (2, 8, size // attributes.get("strides", [1])[0], out), F)
    graph.add_node(Convolution(pads=[1, 1, 1, 1], **attributes), {"X": h, "W": w}, {"Y": y})
    graph.add_output(y)
    return graph, h, w


def test_rows_of_an_image_follow_those_of_the_result_and_channels_do_not() -> None:
    graph, h, w = convolved()
    node = graph.nodes()[-1]
    assert infer(graph, node, (2, 1, 4, 1)) == {h: (2, 1, 4, 1), w: (1, 1, 1, 1)}
    assert infer(graph, node, (2, 4, 1, 1)) == {h: (2, 1, 1, 1), w: (4, 1, 1, 1)}


def test_what_cannot_be_divided_has_no_binding() -> None:
    graph, h, _ = convolved(size=6)
    assert h not in infer(graph, graph.nodes()[-1], (1, 1, 4, 1))


def test_it_goes_through_views_and_parts() -> None:
    graph = Graph("views")
    b, x = Builder(graph), graph.add_input("x", (8, 6), F)
    h = b.elementwise(lambda v: sympy.tanh(v), x)
    graph.add_output(b.elementwise(lambda v: sympy.exp(v), b.transpose(h, (1, 0))))
    first, second = graph.nodes()
    assert infer(graph, second, (2, 4))[h] == (4, 2)
    split(graph, first, 0, 2)
    assert [infer(graph, second, (2, 4))[part] for part in graph.parts_of(h)] == [(4, 2)] * 2
