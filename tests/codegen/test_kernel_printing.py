"""Kernels that are alike but for names are printed once, and each as it would be alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dace
import pytest
import sympy

from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.codegen.cpu.map_source import map_source
from daceopt.codegen.kernel_printing import KernelPrinter
from daceopt.codegen.kernel_unit import KernelSource
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel, param
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule.schedule import default

F = dace.float32
Layer = Callable[[Builder, str], str]


def _softmax(b: Builder, x: str) -> str:
    highest = b.reduce("max", None, x, axes=(1,), keepdims=True, label="layer")
    return b.elementwise(lambda v, m: sympy.exp(v - m), x, highest, label="layer")


def _half_turned(b: Builder, x: str) -> str:
    return b.elementwise(lambda v: v * 2, b.transpose(b.slice(x, [1], [7], [1], [0]), (1, 0)), label="layer")


def _printed(graph: Graph, change: Callable[[int], None] = lambda k: None) -> int:
    """How many kernels of ``graph`` are printed; each is what it is when it is printed by itself."""
    prints: list[Kernel] = []

    def counted(of: Graph, kernel: Kernel) -> KernelSource:
        prints.append(kernel)
        return kernel_source(of, kernel)

    printer = KernelPrinter(counted)
    for k, node in enumerate(graph.kernels()):
        change(k)
        assert printer.source(graph, node.kernel) == kernel_source(graph, node.kernel)
    return len(prints)


def _of_two(first: Layer, second: Layer, shape: tuple[Any, ...] = (8, 16), dtype: Any = F) -> Graph:
    graph = Graph("test")
    b = Builder(graph)
    for layer, extents, kind in ((first, (8, 16), F), (second, shape, dtype)):
        graph.add_output(layer(b, graph.add_input("x", extents, kind)))
    return graph


@pytest.mark.parametrize(("layer", "kernels"), [(_softmax, 2), (_half_turned, 1)])
def test_repeated_layers_are_printed_once(layer: Layer, kernels: int) -> None:
    graph = _of_two(layer, layer)
    assert len(graph.kernels()) == 2 * kernels and _printed(graph) == kernels


def test_rows_of_an_array_are_printed_once() -> None:
    """Where they begin is an argument. Those that are further apart are another kernel, whose text is the same."""
    graph = Graph("test")
    b, x = Builder(graph), graph.add_input("x", (8, 16), F)
    for pair in ((0, 1), (3, 4), (6, 5), (2, 7)):
        rows = (graph.add_view(x, "row", (16,), (1,), 16 * k) for k in pair)
        graph.add_output(b.elementwise(lambda u, v: u + v * 2, *rows, label="layer"))
    assert _printed(graph) == 3
    assert len({kernel_source(graph, node.kernel).name for node in graph.kernels()}) == 1


def _drawn(number: int) -> Layer:
    def layer(b: Builder, x: str) -> str:
        y = b.graph.add_array("y", b.graph.shape(x), F)
        reads = {"v": (x, lambda i, j: (i, j)), "seed": (b.graph.seed(), lambda *i: (0,))}
        b.map(
            b.graph.shape(x),
            reads,
            {"out": (y, lambda i, j: (i, j))},
            lambda i, v, seed: v * scalar.uniform(seed, number, 16 * i[0] + i[1]),
            label="layer",
        )
        return y

    return layer


def test_numbers_by_which_kernels_draw_are_arguments() -> None:
    graph = _of_two(_drawn(5), _drawn(7))
    assert _printed(graph) == 1
    sources = [kernel_source(graph, node.kernel) for node in graph.kernels()]
    assert [[a.value for a in s.arguments if a.kind == "draw"] for s in sources] == [[5], [7]]
    for node, number in zip(
        graph.kernels(), (5, 7), strict=True
    ):  # a map of DaCe has no arguments but arrays and sizes
        code = map_source(graph, node.kernel).code
        assert f" = {number};" in code and "draw0" not in code


def _scaled(by: Any) -> Layer:
    return lambda b, x: b.elementwise(lambda v: v * by, x, label="layer")


@pytest.mark.parametrize(
    ("second", "shape", "dtype"),
    [
        (_scaled(3), (8, 16), F),
        (_scaled(2.0), (8, 16), F),
        (lambda b, x: b.elementwise(lambda v: scalar.cast(v, dace.int32) * 2, x, label="layer"), (8, 16), F),
        (lambda b, x: b.elementwise(lambda v: v * 2, b.transpose(x, (1, 0)), label="layer"), (16, 8), F),
        (_scaled(2), (16, 8), F),
        (_scaled(2), (8, 16), dace.float64),
    ],
    ids=["constant", "type_of_a_constant", "cast", "layout", "shape", "dtype"],
)
def test_what_differs_in_one_thing_is_printed_by_itself(second: Layer, shape: tuple[int, ...], dtype: Any) -> None:
    assert _printed(_of_two(_scaled(2), second, shape, dtype)) == 2


def test_schedules_are_told_apart() -> None:
    graph = _of_two(_scaled(2), _scaled(2))
    for k, node in enumerate(graph.kernels()):
        tree = default(node.kernel)
        chosen = edits.reorder(tree, [param(1), param(0)]) if k else tree
        node.kernel = replace(node.kernel, schedule=chosen)
    assert _printed(graph) == 2


@pytest.mark.parametrize("relation", ["in_place", "overwrites"])
def test_what_is_written_over_what_it_reads_is_told_apart(relation: str) -> None:
    """A pointer that another one meets must not be said to be alone."""
    graph = _of_two(_of_two_results, _of_two_results)
    first = graph.kernels()[0].kernel

    def change(k: int) -> None:
        over = {first.writes()[0].array: first.reads()[0].array}
        setattr(graph, relation, over if k == 0 else {})

    assert _printed(graph, change) == 2


def _of_two_results(b: Builder, x: str) -> str:
    first, second = b.elementwise(lambda v: (v + 1, v * 2), x, label="layer")
    b.graph.add_output(first)
    return second
