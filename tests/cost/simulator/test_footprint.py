"""Bytes are those that a walk over every iteration of every statement finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import dace
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.cost.simulator.footprint import Footprints
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution
from daceopt.ops import lower_all
from daceopt.splits import CannotSplit, split
from tests.strategies import graphs
from tests.transformations.lowered import BATCH

SIZES = {"n": BATCH}


def number(value: Any) -> int:
    return int(value.subs(dict.fromkeys(value.free_symbols, BATCH))) if hasattr(value, "subs") else int(value)


def elements(graph: Graph, name: str) -> Iterator[int]:
    """Where each element of an array stands in its buffer."""
    extents, strides = ([number(v) for v in values] for values in (graph.shape(name), graph.strides(name)))
    start = number(graph.root(name)[1])
    for index in itertools.product(*map(range, extents)):
        yield start + sum(i * s for i, s in zip(index, strides))


def walked(graph: Graph, node: Any) -> dict[str, int] | None:
    """What ``Footprints.reads`` must say, element by element; None where a node reads at run-time indices."""
    touched: dict[str, set[int]] = {}
    if isinstance(node, KernelNode):
        kernel = node.kernel
        for stage in kernel.stages:
            for access in (a for a in stage.reads.values() if a.array not in kernel.locals):
                if any(e is None for e in access.index):
                    return None
                found = touched.setdefault(graph.written_array(access.array), set())
                found |= set(reached(graph, kernel, stage, access))
    else:
        for name in graph.inputs_of(node):
            touched.setdefault(graph.written_array(name), set()).update(elements(graph, name))
    result: dict[str, int] = {}
    for written, places in touched.items():
        for source in graph.sources(written):
            if count := len(places & set(elements(graph, source))):
                result[source] = count
    return result


def reached(graph: Graph, kernel: Kernel, stage: Any, access: Any) -> Iterator[int]:
    start = number(graph.root(access.array)[1])
    strides = [number(s) for s in graph.strides(access.array)]
    for place in itertools.product(*(range(number(kernel.extents[p])) for p in stage.params)):
        here = dict(zip(stage.params, place))
        index = [number(e.xreplace(here) if hasattr(e, "xreplace") else e) for e in access.index]
        yield start + sum(i * s for i, s in zip(index, strides))


def halves(graph: Graph, choices: st.DataObject) -> None:
    """Split some nodes along some axis."""
    for node in graph.nodes():
        axis = choices.draw(st.integers(-1, 2))
        if axis >= 0:
            try:
                split(graph, node, axis, choices.draw(st.integers(2, 3)))
            except (CannotSplit, IndexError, ValueError):
                continue


@settings(max_examples=40)
@given(graphs(2, 14), st.data())
def test_what_nodes_read_is_what_a_walk_finds(graph: Graph, choices: st.DataObject) -> None:
    halves(graph, choices)
    graph.validate()
    counted = Footprints(graph, SIZES)
    for node in graph.nodes():
        expected = walked(graph, node)
        if expected is not None:
            assert counted.reads(node) == expected
        for name, count in counted.writes(node).items():
            assert count == len(set(elements(graph, name)))


def test_the_halo_of_a_convolution_counts_for_both_parts() -> None:
    graph = Graph("halo")
    x = graph.add_input("x", (1, 2, 8, 8), dace.float32)
    first = Builder(graph).elementwise(lambda v: v + 1, x)
    w = graph.add_input("w", (4, 2, 3, 3), dace.float32)
    y = graph.add_array("y", (1, 4, 8, 8), dace.float32)
    node = Convolution(pads=[1, 1, 1, 1])
    graph.add_node(node, {"X": first, "W": w}, {"Y": y})
    graph.add_output(y)
    (above, _), (upper, lower) = split(graph, graph.nodes()[0], 2, 2), split(graph, node, 2, 2)
    counted = Footprints(graph)
    (own,) = (n for n in graph.outputs_of(above))
    assert counted.reads(upper)[own] == 2 * 4 * 8 and counted.reads(lower)[own] == 2 * 1 * 8
    assert sum(counted.reads(lower).values()) == 2 * 5 * 8 + 4 * 2 * 9


def test_a_gather_counts_what_it_picks() -> None:
    graph = Graph("gather")
    table, index = graph.add_input("table", (1000, 4), dace.float32), graph.add_input("index", (6,), dace.int64)
    rows = graph.add_array("rows", (6, 4), dace.float32)
    graph.add_operator("Gather", [table, index], [rows], {"axis": 0})
    graph.add_output(rows)
    lower_all(graph)
    counted = Footprints(graph).reads(graph.nodes()[0])
    assert counted == {table: 24, index: 6}


def test_a_missing_size_is_named() -> None:
    graph = Graph("open")
    x = graph.add_input("x", (dace.symbolic.symbol("rows", dace.int64), 4), dace.float32)
    graph.add_output(Builder(graph).elementwise(lambda v: v + 1, x))
    try:
        Footprints(graph).reads(graph.nodes()[0])
    except DaceoptError as error:
        assert "the sizes rows are open" in str(error)
    else:
        raise AssertionError("an open size was counted")
