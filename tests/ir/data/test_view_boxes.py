"""Which elements of an array a view shows, against counting them."""

from __future__ import annotations

from itertools import product

import dace
import numpy as np
import pytest
import sympy

from daceopt.ir.data.view_boxes import box_of, nearest
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder


def _halves(axis: int = 0) -> tuple[Graph, Builder, str, list[str]]:
    graph = Graph("halves")
    b = Builder(graph)
    x = graph.add_input("x", (4, 6, 8), dace.float32)
    whole = graph.add_array("whole", (4, 6, 8), dace.float32)
    size = [4, 6, 8][axis] // 2
    parts = []
    for k in range(2):
        starts = [k * size if a == axis else 0 for a in range(3)]
        shape = [size if a == axis else n for a, n in enumerate((4, 6, 8))]
        piece = b.slice(x, starts, [s + n for s, n in zip(starts, shape)])
        parts.append(graph.add_part(whole, "part", starts, shape))
        b.elementwise(lambda v: sympy.tanh(v), piece, out=parts[-1])
    return graph, b, whole, parts


def _brute(graph: Graph, view: str, whole: str) -> list[set[int]]:
    """The indices that occur along each axis of ``whole``."""
    offset, name = 0, view
    while graph.is_view(name):
        offset, name = offset + int(graph.view_offset(name)), graph.view_source(name)
    steps = [int(s) for s in graph.strides(view)]
    places = [
        offset + sum(i * s for i, s in zip(index, steps))
        for index in product(*(range(int(n)) for n in graph.shape(view)))
    ]
    return [set(axis.tolist()) for axis in np.unravel_index(places, [int(n) for n in graph.shape(whole)])]


@pytest.mark.parametrize("seed", range(60))
def test_boxes_have_all_that_views_show(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, b, whole, _ = _halves(int(rng.integers(3)))
    view, exact = whole, True
    for _ in range(int(rng.integers(1, 4))):
        shape = [int(n) for n in graph.shape(view)]
        kind = rng.choice(["slice", "transpose", "unsqueeze", "reshape", "expand"])
        if kind == "slice":
            starts = [int(rng.integers(0, n)) for n in shape]
            ends = [int(rng.integers(s + 1, n + 1)) for s, n in zip(starts, shape)]
            view = b.slice(view, starts, ends, [int(rng.integers(1, 3)) for _ in shape])
        elif kind == "transpose":
            view = b.transpose(view, tuple(int(k) for k in rng.permutation(len(shape))))
        elif kind == "unsqueeze":
            view = b.unsqueeze(view, [int(rng.integers(0, len(shape)))])
        elif kind == "expand" and 1 in shape:
            view = b.expand(view, [3 if n == 1 else n for n in shape])
        elif kind == "reshape" and graph.is_contiguous(view):
            view, exact = b.reshape(view, (shape[0] * shape[1], *shape[2:])), False
        if not graph.is_view(view) and view != whole:
            return  # a copy
    starts, extents = box_of(graph, view)
    for found, start, extent in zip(_brute(graph, view, whole), starts, extents, strict=True):
        assert min(found) >= start and max(found) < start + extent
        assert not exact or (min(found), max(found)) == (start, start + extent - 1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_only_the_writers_of_what_a_view_shows_are_its_producers(axis: int) -> None:
    graph, b, whole, parts = _halves(axis)
    size = [4, 6, 8][axis] // 2
    first = b.slice(whole, [0], [size], axes=[axis])
    across = b.transpose(b.slice(whole, [size - 1], [size + 1], axes=[axis]), (2, 0, 1))
    assert graph.sources(first) == parts[:1] and graph.sources(across) == parts == graph.sources(whole)
    assert graph.producers(first) == [graph.producer(parts[0])]


def test_a_view_of_a_part_takes_the_place_of_one_of_the_whole() -> None:
    graph, b, whole, parts = _halves(1)
    view = b.transpose(b.slice(whole, [0, 4, 0], [4, 5, 8]), (2, 1, 0))
    found = nearest(graph, view)
    assert graph.written_array(found) == parts[1] and graph.shape(found) == graph.shape(view)
    assert graph.strides(found) == graph.strides(view) and graph.root(found) == graph.root(view)
    assert nearest(graph, found) == found
    both = b.slice(whole, [2], [4], axes=[1])
    assert nearest(graph, both) == both


def test_views_of_open_extent_show_all() -> None:
    graph = Graph("open")
    b = Builder(graph)
    n = dace.symbolic.symbol("n", dace.int64)
    x = graph.add_input("x", (n, 4), dace.float32)
    graph.symbols["n"] = (x, 0)
    whole = graph.add_array("whole", (2 * n, 4), dace.float32)
    for k in range(2):
        y = b.elementwise(lambda v: v + 1, x)
        graph.attach(y, whole, [k * n, 0])
    view = b.slice(whole, [0], [n], axes=[0])
    assert box_of(graph, view) == ([0, 0], graph.shape(whole)) and len(graph.sources(view)) == 2


def test_an_empty_view_shows_nothing_that_it_need_not() -> None:
    graph, b, whole, _ = _halves()
    view = b.slice(whole, [1, 0, 0], [1, 6, 8])
    assert graph.shape(view)[0] == 0 and len(graph.sources(view)) == 2


def test_views_go_with_the_array_that_nobody_reads_whatever_was_declared_first() -> None:
    graph = Graph("order")
    b = Builder(graph)
    x = graph.add_input("x", (4, 4), dace.float32)
    whole = graph.add_array("whole", (4, 4), dace.float32)
    rows = [b.slice(x, [2 * k], [2 * k + 2], axes=[0]) for k in range(2)]
    for k in range(2):
        b.elementwise(lambda v: v + 1, rows[k], out=graph.add_part(whole, "p", [2 * k, 0], (2, 4)))
    first = b.slice(x, [0], [2], axes=[0])
    inner = b.slice(first, [0], [2], axes=[1])
    graph.replace_uses(first, b.slice(whole, [0], [2], axes=[0]))
    assert graph.arrays().index(inner) < graph.arrays().index(graph.view_source(inner))
    graph.add_output(b.elementwise(lambda v: v * 2, x))
    graph.prune()
    assert graph.arrays() == [x, graph.outputs[0]]
