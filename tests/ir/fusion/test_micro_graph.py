"""Types of micro-graphs follow from dataflow, whatever the operator is called; patterns name forms, not names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import pytest
import sympy

from daceopt import ops
from daceopt.ir.fusion.micro_graph import Link, links, type_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Convolution, HostCall, Pool
from daceopt.ir.scalar import scalar
from daceopt.transformations.local.map_fusion import MapFusion
from tests.transformations.graphs import Net
from tests.transformations.lowered import F, finish, start

Build = Callable[[Any, list[str]], str]
N = dace.symbolic.symbol("n", dace.int64)


def last(shapes: list[tuple], build: Build) -> tuple[Graph, Any]:
    """The graph of what ``build`` gives, and its last node."""
    graph, b, names = start(*shapes)
    finish(graph, build(b, names))
    return graph, graph.nodes()[-1]


SQUARE, OTHER, ROW, SCALAR = (4, 6), (6, 4), (6,), ()


@pytest.mark.parametrize(
    ("expected", "shapes", "build"),
    [
        ("element-wise", [SQUARE], lambda b, x: b.elementwise(sympy.tanh, x[0])),
        ("element-wise", [SQUARE, SQUARE], lambda b, x: b.elementwise(lambda u, v: u + v, *x)),
        ("element-wise", [(N, 6)], lambda b, x: b.elementwise(sympy.tanh, x[0])),
        ("element-wise", [SQUARE], lambda b, x: b.elementwise(sympy.tanh, b.reshape(x[0], (24,)))),
        ("element-wise", [(4, 1)], lambda b, x: b.elementwise(sympy.tanh, b.reshape(x[0], (4,)))),
        ("broadcast", [SQUARE, ROW], lambda b, x: b.elementwise(lambda u, v: u + v, *x)),
        ("broadcast", [SQUARE, SCALAR], lambda b, x: b.elementwise(lambda u, v: u + v, *x)),
        ("broadcast", [ROW], lambda b, x: b.elementwise(sympy.tanh, b.expand(x[0], SQUARE))),
        ("broadcast", [(N, 6), (N, 1)], lambda b, x: b.elementwise(lambda u, v: u + v, *x)),
        ("reduction", [SQUARE], lambda b, x: b.reduce("sum", None, x[0], axes=[1])),
        ("reduction", [SQUARE], lambda b, x: b.reduce("max", None, x[0], axes=[0, 1])),
        ("reduction", [SQUARE, ROW], lambda b, x: b.reduce("sum", lambda u, v: u * v, *x, axes=[1])),
        ("reduction", [(N, 6)], lambda b, x: b.reduce("sum", None, x[0], axes=[0])),
        ("transpose", [SQUARE], lambda b, x: b.copy(b.transpose(x[0], [1, 0]))),
        ("transpose", [SQUARE, OTHER], lambda b, x: b.elementwise(lambda u, v: u + v, x[0], b.transpose(x[1], [1, 0]))),
        ("matmul", [SQUARE, OTHER], lambda b, x: b.matmul(*x)),
        ("matmul", [SQUARE, SQUARE], lambda b, x: b.matmul(x[0], b.transpose(x[1], [1, 0]))),
        ("matmul", [(2, 4, 6), (2, 6, 4)], lambda b, x: b.matmul(*x)),
        ("reduction", [SQUARE, (6, 1)], lambda b, x: b.matmul(*x)),  # nothing is used twice: bound by memory
        ("stencil", [SQUARE], lambda b, x: _window(b, x[0])),
        ("stencil", [SQUARE, (4, 1)], lambda b, x: _column(b, *x)),
    ],
)
def test_types(expected: str, shapes: list[tuple], build: Build) -> None:
    assert type_of(*last(shapes, build)) == expected


def _window(b: Any, x: str) -> str:
    out = b.graph.add_array("window", (4, 4), F)
    reads = {"x": (x, lambda i, j, k: (i, j + k))}
    b.map((4, 4, 3), reads, {"out": (out, lambda i, j, k: (i, j), "sum")}, lambda i, x: x / 3)
    return str(out)


def _column(b: Any, x: str, y: str) -> str:
    """One column of many: a part."""
    out = b.graph.add_array("column", (4, 1), F)
    reads = {"x": (x, lambda i, j: (i, 3)), "y": (y, lambda i, j: (i, j))}
    b.map((4, 1), reads, {"out": (out, lambda i, j: (i, j))}, lambda i, x, y: x + y)
    return str(out)


def test_a_product_in_loops_of_our_own_is_one() -> None:
    graph, b, (x, y) = start(SQUARE, OTHER)
    out = graph.add_array("out", (4, 4), F)
    reads = {"x": (x, lambda i, j, k: (i, k)), "y": (y, lambda i, j, k: (k, j))}
    b.map((4, 4, 6), reads, {"out": (out, lambda i, j, k: (i, j), "sum")}, lambda i, x, y: x * y)
    assert type_of(finish(graph, out), graph.nodes()[-1]) == "matmul"


def test_rows_read_at_run_time() -> None:
    graph, b, (x,) = start(SQUARE)
    index, out = graph.add_input("index", (3,), dace.int64), graph.add_array("out", (3, 6), F)
    reads = {"x": (x, lambda i, j: (None, None)), "r": (index, lambda i, j: (i,))}
    b.map((3, 6), reads, {"out": (out, lambda i, j: (i, j))}, lambda i, x, r: scalar.load(x, r, i[1]))
    assert type_of(finish(graph, out), graph.nodes()[-1]) == "opaque"


def test_library_nodes() -> None:
    graph, b, (x, w) = start((1, 3, 8, 8), (5, 3, 3, 3))
    y = graph.add_array("y", (1, 5, 6, 6), F)
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, strides=[1, 1], pads=[0] * 4, dilations=[1, 1])
    z = graph.add_array("z", (1, 5, 3, 3), F)
    b.library(Pool, {"X": y}, {"Y": z}, kernel=[2, 2], strides=[2, 2], pads=[0] * 4, dilations=[1, 1])
    out = graph.add_array("out", (1, 5, 3, 3), F)
    b.library(HostCall, {"In0": z}, {"Out0": out}, callback="m:f")
    assert [type_of(graph, n) for n in finish(graph, out).nodes()] == ["conv", "stencil", "opaque"]


def test_a_depthwise_convolution() -> None:
    graph, b, (x, w) = start((1, 4, 8, 8), (4, 1, 3, 3))
    y = graph.add_array("y", (1, 4, 6, 6), F)
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, strides=[1, 1], pads=[0] * 4, dilations=[1, 1], group=4)
    assert type_of(finish(graph, y), graph.nodes()[0]) == "conv"


@pytest.mark.parametrize("op", ["LayerNormalization", "Softmax", "LogSoftmax"])
def test_fused_kernels_of_reductions_are_reductions(op: str) -> None:
    net = Net(x=SQUARE, scale=ROW)
    graph = net.done(net.op(op, *([net.x, net.scale] if op.startswith("Layer") else [net.x]), axis=1, shape=SQUARE))
    ops.lower_all(graph)
    MapFusion().run(graph)
    assert [type_of(graph, n) for n in graph.nodes()] == ["reduction"]


def test_an_operator_that_is_not_lowered_is_opaque() -> None:
    net = Net(x=SQUARE)
    graph = net.done(net.op("Softmax", net.x, axis=1))
    assert type_of(graph, graph.nodes()[0]) == "opaque"


@pytest.mark.parametrize(
    ("expected", "build"),
    [
        (Link("bijective", "bijective"), lambda b, t: b.elementwise(sympy.tanh, t)),
        (Link("bijective", "surjective"), lambda b, t: b.reduce("sum", None, t, axes=[1])),
        (Link("permuted", "permuted"), lambda b, t: b.elementwise(sympy.tanh, b.transpose(t, [1, 0]))),
        (Link("opaque", "opaque"), lambda b, t: b.elementwise(sympy.tanh, b.reshape(t, (24,)))),
        (Link("injective", "injective"), lambda b, t: b.elementwise(sympy.tanh, b.expand(t, (2, 4, 6)))),
        (
            Link("neighbourhood", "neighbourhood"),
            lambda b, t: b.elementwise(sympy.tanh, b.slice(t, [1], [3], [1], [0])),
        ),
        (Link("bijective", "bijective"), lambda b, t: b.elementwise(sympy.tanh, b.reshape(t, (4, 1, 6)))),
        (
            Link("permuted", "permuted"),
            lambda b, t: b.elementwise(lambda u, v: u + v, b.transpose(t, [1, 0]), b.full((6, 4), 1, F)),
        ),
    ],
)
def test_links(expected: Link, build: Callable[[Any, str], str]) -> None:
    graph, b, (x,) = start(SQUARE)
    made = b.elementwise(sympy.exp, x)
    finish(graph, build(b, made))
    assert links(graph, graph.nodes()[-1])[made] == expected


def test_an_array_that_is_read_twice() -> None:
    graph, b, (x,) = start((4, 4))
    made = b.elementwise(sympy.exp, x)
    finish(graph, b.elementwise(lambda u, v: u + v, made, b.transpose(made, [1, 0])))
    assert links(graph, graph.nodes()[-1])[made] == Link("permuted", "permuted")
