"""Splitting any node along any axis: what the pieces compute together is what the node computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes import library
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ops import lower_all
from daceopt.splits import CannotSplit, split, why_not
from tests.properties.graphs import NOMINAL, SIZE, Maker
from transformations.local.map_fusion import MapFusion

F = dace.float32


def _inputs(graph: Graph, size: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shapes = {n: [e if isinstance(e, int) else int(e.subs(dict.fromkeys(e.free_symbols, size))) for e in graph.shape(n)]
              for n in graph.inputs}  # fmt: skip
    return {n: rng.standard_normal(shape) for n, shape in shapes.items()}


def _check(graph: Graph, node: Any, axis: int, parts: Any) -> list[Any]:
    """Split in a copy, and compare everything that is put out; returns the nodes that there are instead."""
    twin = graph.copy()
    (same,) = [b for a, b in zip(graph.nodes(), twin.nodes(), strict=True) if a is node]
    made = split(twin, same, axis, parts)
    twin.validate()
    inputs = _inputs(graph, NOMINAL)
    before, after = interpret(graph, inputs, np.float64), interpret(twin, inputs, np.float64)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-13, atol=1e-13)  # NumPy sums blocks by size
    return made


@pytest.mark.share(2)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_any_node_of_a_random_graph_along_any_axis(seed: int, fused: bool) -> None:
    graph = Maker(seed).build()
    lower_all(graph)
    if fused:
        MapFusion().run(graph)
    rng = np.random.default_rng(seed)
    for node in graph.nodes():
        shape = graph.shape(next(n for n in graph.outputs_of(node) if n))
        for axis, extent in enumerate(shape):
            if extent < 2:
                continue
            try:
                _check(graph, node, axis, int(rng.integers(2, min(extent, 4) + 1)))
            except CannotSplit as error:
                assert str(error)


def test_most_axes_of_random_graphs_can_be_split() -> None:
    allowed = refused = 0
    for seed in range(30):
        graph = Maker(seed).build()
        lower_all(graph)
        for node in graph.nodes():
            shape = graph.shape(next(n for n in graph.outputs_of(node) if n))
            reasons = [why_not(graph, node, axis) for axis in range(len(shape)) if shape[axis] > 1]
            allowed, refused = allowed + reasons.count(None), refused + len(reasons) - reasons.count(None)
    assert allowed > 9 * refused


def _node(cls: type, inputs: dict[str, Any], outputs: dict[str, Any], types: Any = None, **attributes: Any) -> Any:
    graph = Graph("one")
    reads = {c: graph.add_input(c, shape, (types or {}).get(c, F)) for c, shape in inputs.items()}
    writes = {c: graph.add_array(c, shape, (types or {}).get(c, F)) for c, shape in outputs.items()}
    node = cls("node", inputs=list(reads), outputs=list(writes), **attributes)
    graph.add_node(node, reads, writes)
    for name in writes.values():
        graph.add_output(name)
    return graph, node


C, P = library.Convolution, library.Pool
CASES: dict[str, Callable[[], Any]] = {
    "product": lambda: _node(library.Contraction, {"A": (3, 4, 5), "B": (5, 6), "Bias": (6,)}, {"Y": (3, 4, 6)}),
    "product of batches": lambda: _node(
        library.Contraction, {"A": (1, 4, 5), "B": (3, 5, 6), "C": (3, 4, 6)}, {"Y": (3, 4, 6)}, alpha=0.5
    ),
    "column bias": lambda: _node(library.Contraction, {"A": (4, 5), "B": (5, 6), "Bias": (4, 1)}, {"Y": (4, 6)}),
    "convolution": lambda: _node(
        C, {"X": (2, 3, 8, 9), "W": (4, 3, 3, 3), "B": (4,), "Z": (2, 4, 8, 9)}, {"Y": (2, 4, 8, 9)}, pads=[1, 1, 1, 1]
    ),
    "steps and dilations": lambda: _node(
        C,
        {"X": (2, 3, 13, 9), "W": (4, 3, 3, 2)},
        {"Y": (2, 4, 6, 5)},
        pads=[1, 0, 1, 1],
        strides=[2, 2],
        dilations=[2, 1],
    ),
    "groups": lambda: _node(C, {"X": (2, 4, 6), "W": (8, 1, 3)}, {"Y": (2, 8, 4)}, group=4),
    "backward data": lambda: _node(
        library.ConvolutionBackwardData, {"dY": (2, 4, 6, 6), "W": (4, 3, 3, 3)}, {"dX": (2, 3, 8, 8)}
    ),
    "backward data of groups": lambda: _node(
        library.ConvolutionBackwardData, {"dY": (2, 8, 4), "W": (8, 1, 3)}, {"dX": (2, 4, 6)}, group=4
    ),
    "backward weights": lambda: _node(
        library.ConvolutionBackwardWeights, {"X": (2, 3, 8, 8), "dY": (2, 4, 6, 6)}, {"dW": (4, 3, 3, 3)}
    ),
    "backward weights of groups": lambda: _node(
        library.ConvolutionBackwardWeights, {"X": (2, 4, 6), "dY": (2, 8, 4)}, {"dW": (8, 1, 3)}, group=4
    ),
    "max pool": lambda: _node(
        P,
        {"X": (2, 3, 9, 8)},
        {"Y": (2, 3, 5, 4), "Workspace": (2, 3, 5, 4)},
        {"Workspace": dace.uint8},
        kernel=[3, 2],
        strides=[2, 2],
        pads=[1, 0, 1, 0],
    ),
    "average pool": lambda: _node(
        P, {"X": (2, 3, 9)}, {"Y": (2, 3, 9)}, kind="average", kernel=[3], strides=[1], pads=[1, 1]
    ),
    "average pool with padding": lambda: _node(
        P,
        {"X": (2, 3, 9)},
        {"Y": (2, 3, 9)},
        kind="average",
        kernel=[3],
        strides=[1],
        pads=[1, 1],
        count_include_pad=True,
    ),
    "pool backward": lambda: _node(
        library.PoolBackward, {"dY": (2, 4, 4)}, {"dX": (2, 4, 8)}, kind="average", kernel=[2], strides=[2]
    ),
}
REFUSED = {
    ("groups", 1, 3): "4 groups of 2 channels; expected whole groups",
    ("backward data", 2, 2): "a sum over windows of several rows",
    ("pool backward", 2, 2): "a sum over windows of several rows",
}


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_library_nodes(case: str, parts: int) -> None:
    graph, node = CASES[case]()
    shape = graph.shape(graph.outputs_of(node)[0])
    done = 0
    for axis, extent in enumerate(shape):
        if extent < parts:
            continue
        try:
            made = _check(graph, node, axis, parts)
        except CannotSplit:
            continue
        assert len(made) == parts and all(type(n) is type(node) for n in made)
        done += 1
    assert done or (case, parts) == ("backward weights of groups", 3)  # 8 channels of 4 groups


@pytest.mark.parametrize(("case", "axis", "parts"), REFUSED)
def test_what_is_refused_has_its_reason(case: str, axis: int, parts: int) -> None:
    graph, node = CASES[case]()
    before = graph.nodes()
    with pytest.raises(CannotSplit, match=REFUSED[case, axis, parts]):
        split(graph, node, axis, parts)
    assert graph.nodes() == before and not any(graph.is_part(n) for n in graph.arrays())


def test_convolutions_of_images_in_blocks_are_split_along_the_batch() -> None:
    images = {"X": (4, 2, 6, 6, 16), "Y": (4, 1, 6, 6, 16)}

    def forward() -> tuple[Graph, Any]:
        return _node(library.Convolution, {"X": images["X"], "W": (16, 32, 1, 1)}, {"Y": images["Y"]})

    _check(*forward(), 0, 2)
    for axis in range(1, 5):
        with pytest.raises(CannotSplit, match="X and Y in blocks of channels"):
            split(*forward(), axis, 2)
    data = _node(library.ConvolutionBackwardData, {"dY": images["Y"], "W": (16, 32, 1, 1)}, {"dX": images["X"]})
    _check(*data, 0, 2)
    weights = _node(library.ConvolutionBackwardWeights, {"X": images["X"], "dY": images["Y"]}, {"dW": (16, 32, 1, 1)})
    with pytest.raises(CannotSplit, match="X and dY in blocks"):
        split(*weights, 0, 2)


def test_rows_that_are_scattered() -> None:
    def make() -> Any:
        return _node(library.IndexAdd, {"Index": (4,), "dY": (4, 6)}, {"dW": (3, 6)}, {"Index": dace.int64})

    graph, node = make()
    with pytest.raises(CannotSplit, match="any row"):
        split(graph, node, 0, 3)
    split(graph, node, 1, 3)
    graph.validate()
    inputs = {graph.inputs[0]: np.array([0, 2, 2, 1]), graph.inputs[1]: np.arange(24.0).reshape(4, 6)}
    expected = interpret(make()[0], inputs, np.float64)
    np.testing.assert_array_equal(interpret(graph, inputs, np.float64)[graph.outputs[0]], next(iter(expected.values())))


def _rows() -> tuple[Graph, str]:
    """A softmax over the last axis, fused into one kernel of several stages."""
    graph = Graph("softmax")
    b = Builder(graph, "v")
    x = graph.add_input("x", (6, 40), F)
    top = b.reduce("max", None, x, axes=(-1,), keepdims=True)
    power = b.elementwise(lambda v, m: sympy.exp(v - m), x, top)
    total = b.reduce("sum", None, power, axes=(-1,), keepdims=True)
    graph.add_output(b.elementwise(lambda v, s: v / s, power, total))
    MapFusion().run(graph)
    assert len(graph.nodes()) == 1
    return graph, x


def test_softmax_is_split_into_rows_and_not_inside_of_them() -> None:
    graph, _ = _rows()
    assert len(_check(graph, graph.nodes()[0], 0, [1, 2, 3])) == 3
    with pytest.raises(CannotSplit, match="reduces over i1"):
        split(graph, graph.nodes()[0], 1, 2)


def test_a_reduction_is_split_along_what_it_keeps() -> None:
    graph = Graph("sums")
    x = graph.add_input("x", (6, 40), F)
    graph.add_output(Builder(graph).reduce("sum", None, x, axes=(0,)))
    assert len(_check(graph, graph.nodes()[0], 0, 4)) == 4


def test_extents_may_be_open() -> None:
    graph = Graph("open")
    x, y = graph.add_input("x", (SIZE + 2, 4), F), graph.add_input("y", (SIZE,), F)
    graph.symbols["s0"] = (y, 0)
    graph.add_output(Builder(graph).elementwise(lambda v: v * 2, x))
    made = _check(graph, graph.nodes()[0], 0, [2, SIZE])
    assert len(made) == 2
    with pytest.raises(CannotSplit, match=r"expected s0 \+ 2"):
        split(graph, graph.nodes()[0], 0, [3, SIZE])
    with pytest.raises(CannotSplit, match="may be negative"):
        split(graph, graph.nodes()[0], 0, [3, SIZE - 1])
    with pytest.raises(CannotSplit, match="2 parts"):
        split(graph, graph.nodes()[0], 0, 2)


def test_a_chain_of_split_nodes_reads_only_the_parts_that_it_needs() -> None:
    graph = Graph("chain")
    b = Builder(graph, "v")
    x = graph.add_input("x", (8, 6), F)
    w = graph.add_input("w", (6, 5), F)
    y = b.matmul(b.elementwise(lambda v: sympy.tanh(v), x), w)
    z = b.elementwise(lambda v: scalar.maximum(v, 0), y)
    graph.add_output(z)
    expected = interpret(graph, _inputs(graph), np.float64)
    for node in graph.nodes():
        split(graph, node, 0, 2)
    graph.validate()
    np.testing.assert_array_equal(interpret(graph, _inputs(graph), np.float64)[z], expected[z])
    for node in graph.nodes():
        assert len([p for n in graph.inputs_of(node) for p in graph.producers(n)]) <= 1  # two chains, side by side
    halves = [n for n in graph.nodes() if isinstance(n, KernelNode)]
    graph.order = [*graph.nodes()[::2], *graph.nodes()[1::2]]  # one half after the other: depth first
    assert len(halves) == 4
    np.testing.assert_array_equal(interpret(graph, _inputs(graph), np.float64)[z], expected[z])


def test_a_concatenation_by_selection_becomes_copies() -> None:
    """Comparisons that are settled inside of a piece go, and with them what they would have read."""
    graph = Graph("joined")
    x, y = graph.add_input("x", (3, 4), F), graph.add_input("y", (5, 4), F)
    out = graph.add_array("out", (8, 4), F)
    graph.add_operator("Concat", [x, y], [out], {"axis": 0})
    graph.add_output(out)
    lower_all(graph)
    (node,) = graph.nodes()
    _check(graph, node, 0, [3, 5])
    first, second = split(graph, node, 0, [3, 5])
    assert graph.inputs_of(first) == [x] and graph.inputs_of(second) == [y]


def test_nodes_without_a_rule_say_so() -> None:
    graph = Graph("operators")
    x = graph.add_input("x", (4, 4), F)
    out = graph.add_array("out", (4, 4), F)
    graph.add_operator("Relu", [x], [out])
    graph.add_output(out)
    assert "not lowered" in str(why_not(graph, graph.nodes()[0], 0))
    call = library.HostCall("call", inputs=["In0"], outputs=["Out0"], callback="numpy:copyto")
    given = graph.add_array("given", (4, 4), F)
    graph.add_node(call, {"In0": x}, {"Out0": given})
    assert "calls Python (numpy:copyto)" in str(why_not(graph, call, 0))
