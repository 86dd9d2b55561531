"""Relation classes: those of known operators, and that no element goes elsewhere than its class allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt.ir.fusion.relations import Flow, Relation, flows, view_flow
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import (
    Contraction,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    HostCall,
    IndexAdd,
    Pool,
    PoolBackward,
)
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.symbols import size
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.local.reduction_lowering import ReductionLowering

F = dace.float32
N = size("n")


def bijective(axis: int) -> Relation:
    return Relation("bijective", axis)


def window(axis: int, stride: Any, offset: Any, width: Any) -> Relation:
    return Relation("neighbourhood", axis, stride, offset, width)


ALL, ONE, OPAQUE = Relation("surjective"), Relation("injective"), Relation("opaque")


class Case:
    """A graph with inputs of these shapes; ``flow(k)``: of input k into the result, through all nodes and views."""

    def __init__(self, *shapes: tuple, dtype: Any = F):
        self.graph = Graph("case")
        self.b = Builder(self.graph)
        self.inputs = [self.graph.add_input(f"x{k}", shape, dtype) for k, shape in enumerate(shapes)]

    def finish(self, out: str) -> Case:
        self.graph.add_output(self.b.copy(out) if self.graph.is_view(out) else out)
        return self

    def flow(self, k: int = 0) -> Flow:
        """Composed along the graph."""
        graph, known = self.graph, {self.inputs[k]: None}
        reached: dict[str, Flow | None] = dict(known)
        for node in graph.nodes():
            for name in graph.inputs_of(node):
                self._see(reached, name)
            for (a, w), own in flows(graph, node).items():
                if a in reached:
                    way = own if reached[a] is None else reached[a].then(own)  # type: ignore[union-attr]
                    reached[w] = way if w not in reached else reached[w].beside(way)  # type: ignore[union-attr]
        found = reached[graph.outputs[0]]
        assert found is not None
        return found

    def _see(self, reached: dict, view: str) -> None:
        if view in reached or not self.graph.is_view(view):
            return
        source = self.graph.view_source(view)
        self._see(reached, source)
        if source in reached:
            own = view_flow(self.graph, view)
            reached[view] = own if reached[source] is None else reached[source].then(own)


def elementwise() -> Case:
    c = Case((2, 3), (3,), (2, 1))
    return c.finish(c.b.elementwise(lambda x, y, z: x * y + z, *c.inputs))


def softmax() -> Case:
    c = Case((2, 4))
    top = c.b.reduce("max", None, c.inputs[0], axes=[1], keepdims=True)
    e = c.b.elementwise(lambda v, m: sympy.exp(v - m), c.inputs[0], top)
    total = c.b.reduce("sum", None, e, axes=[1], keepdims=True)
    return c.finish(c.b.elementwise(lambda v, s: v / s, e, total))


def fused_softmax() -> Case:
    c = softmax()
    ReductionLowering().run(c.graph)
    MapFusion().run(c.graph)
    assert len(c.graph.kernels()) == 1
    return c


def column_sums() -> Case:
    c = Case((3, 4))
    return c.finish(c.b.reduce("sum", None, c.inputs[0], axes=[0]))


def transposed() -> Case:
    c = Case((2, 3, 4))
    return c.finish(c.b.elementwise(lambda v: v * 2, c.b.transpose(c.inputs[0], [2, 0, 1])))


def reversed_part() -> Case:
    c = Case((5, 6))
    return c.finish(c.b.elementwise(lambda v: v * 2, c.b.slice(c.inputs[0], [4, 1], [0, 6], [-2, 2], [0, 1])))


def stencil() -> Case:
    c = Case((9,))
    out = c.graph.add_array("out", (7,), F)
    reads = {f"v{k}": (c.inputs[0], lambda i, k=k: (i + k,)) for k in range(3)}
    c.b.map((7,), reads, {"out": (out, lambda i: (i,))}, lambda p, v0, v1, v2: v0 - 2 * v1 + v2)
    return c.finish(out)


def strided_window() -> Case:
    c = Case((11, 2))
    out = c.graph.add_array("out", (4, 2), F)
    reads = {"v": (c.inputs[0], lambda o, f, k: (3 * o + k, f))}
    c.b.map((4, 2, 2), reads, {"out": (out, lambda o, f, k: (o, f), "sum")}, lambda p, v: v)
    return c.finish(out)


def stencil_twice() -> Case:
    c = stencil()
    middle = c.graph.outputs.pop()
    out = c.graph.add_array("out", (3,), F)
    reads = {f"v{k}": (middle, lambda i, k=k: (2 * i + k,)) for k in range(2)}
    c.b.map((3,), reads, {"out": (out, lambda i: (i,))}, lambda p, v0, v1: v0 + v1)
    return c.finish(out)


def diagonal() -> Case:
    c = Case((4, 4))
    out = c.graph.add_array("out", (4,), F)
    c.b.map((4,), {"v": (c.inputs[0], lambda i: (i, i))}, {"out": (out, lambda i: (i,))}, lambda p, v: v)
    return c.finish(out)


def first_row_everywhere() -> Case:
    c = Case((3, 4))
    out = c.graph.add_array("out", (5, 4), F)
    c.b.map((5, 4), {"v": (c.inputs[0], lambda i, j: (0, j))}, {"out": (out, lambda i, j: (i, j))}, lambda p, v: v)
    return c.finish(out)


def gathered_rows() -> Case:
    c = Case((4, 3))
    out = c.graph.add_array("out", (4, 3), F)
    c.b.map(
        (4, 3),
        {"v": (c.inputs[0], lambda i, j: (None, None))},
        {"out": (out, lambda i, j: (i, j))},
        lambda p, v: scalar.load(v, scalar.pymod(3 * p[0] + 1, 4), p[1]),
    )
    return c.finish(out)


def reshaped() -> Case:
    c = Case((2, 6))
    return c.finish(c.b.elementwise(lambda v: v * 2, c.b.reshape(c.inputs[0], (4, 3))))


def expanded() -> Case:
    c = Case((3, 1))
    return c.finish(c.b.elementwise(lambda v: v * 2, c.b.expand(c.inputs[0], (2, 3, 4))))


def library(cls: type, shapes: dict[str, tuple], out: dict[str, tuple], **attributes: Any) -> Case:
    c = Case(*shapes.values())
    results = {k: c.graph.add_array(k.lower(), s, F) for k, s in out.items()}
    c.b.library(cls, dict(zip(shapes, c.inputs)), results, **attributes)
    return c.finish(next(iter(results.values())))


def product() -> Case:
    return library(Contraction, {"A": (2, 3, 4), "B": (4, 5), "Bias": (5,)}, {"Y": (2, 3, 5)})


def convolution() -> Case:
    shapes = {"X": (2, 3, 7, 6), "W": (4, 3, 3, 2), "B": (4,)}
    return library(Convolution, shapes, {"Y": (2, 4, 4, 5)}, strides=[2, 1], pads=[1, 0, 1, 0])


def depthwise() -> Case:
    return library(Convolution, {"X": (2, 3, 7), "W": (3, 1, 3)}, {"Y": (2, 3, 3)}, dilations=[2], group=3)


def grouped() -> Case:
    return library(Convolution, {"X": (1, 4, 5), "W": (6, 2, 3)}, {"Y": (1, 6, 3)}, group=2)


def data_gradient() -> Case:
    return library(ConvolutionBackwardData, {"dY": (1, 2, 5), "W": (2, 3, 3)}, {"dX": (1, 3, 7)})


def weight_gradient() -> Case:
    return library(ConvolutionBackwardWeights, {"X": (2, 3, 7), "dY": (2, 4, 3)}, {"dW": (4, 3, 3)}, strides=[2])


def pool() -> Case:
    return library(Pool, {"X": (1, 2, 8)}, {"Y": (1, 2, 4)}, kernel=[2], strides=[2], kind="average")


def pool_gradient() -> Case:
    return library(PoolBackward, {"dY": (1, 2, 7)}, {"dX": (1, 2, 8)}, kernel=[2], strides=[1], kind="average")


CASES: dict[Callable[[], Case], dict[int, tuple]] = {
    elementwise: {
        0: ((bijective(0), bijective(1)), "bijective"),
        1: ((bijective(1),), "injective"),
        2: ((bijective(0), ONE), "injective"),
    },
    softmax: {0: ((bijective(0), ALL), "surjective")},
    fused_softmax: {0: ((bijective(0), ALL), "surjective")},
    column_sums: {0: ((ALL, bijective(0)), "surjective")},
    transposed: {0: ((bijective(1), bijective(2), bijective(0)), "bijective")},
    reversed_part: {0: ((window(0, -2, 4, 1), window(1, 2, 1, 1)), "neighbourhood")},
    stencil: {0: ((window(0, 1, 0, 3),), "neighbourhood")},
    strided_window: {0: ((window(0, 3, 0, 2), bijective(1)), "neighbourhood")},
    stencil_twice: {0: ((window(0, 2, 0, 4),), "neighbourhood")},
    diagonal: {0: ((bijective(0), bijective(0)), "neighbourhood")},
    first_row_everywhere: {0: ((ONE, bijective(1)), "injective")},
    gathered_rows: {0: ((OPAQUE, OPAQUE), "opaque")},
    reshaped: {0: ((OPAQUE, OPAQUE), "opaque")},
    expanded: {0: ((bijective(1), ONE), "injective")},
    product: {
        0: ((bijective(0), bijective(1), ALL), "surjective"),
        1: ((ALL, bijective(2)), "surjective"),
        2: ((bijective(2),), "injective"),
    },
    convolution: {
        0: ((bijective(0), ALL, window(2, 2, -1, 3), window(3, 1, 0, 2)), "surjective"),
        1: ((bijective(1), ALL, ALL, ALL), "surjective"),
        2: ((bijective(1),), "injective"),
    },
    depthwise: {0: ((bijective(0), bijective(1), window(2, 1, 0, 5)), "neighbourhood")},
    grouped: {0: ((bijective(0), OPAQUE, window(2, 1, 0, 3)), "opaque")},
    data_gradient: {0: ((bijective(0), ALL, window(2, 1, -2, 3)), "surjective")},
    weight_gradient: {
        0: ((ALL, bijective(1), window(2, 1, 0, 5)), "surjective"),
        1: ((ALL, bijective(0), ALL), "surjective"),
    },
    pool: {0: ((bijective(0), bijective(1), window(2, 2, 0, 2)), "neighbourhood")},
    pool_gradient: {0: ((bijective(0), bijective(1), window(2, 1, -1, 2)), "neighbourhood")},
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_classes(make: Callable[[], Case]) -> None:
    case = make()
    for k, (dims, kind) in CASES[make].items():
        found = case.flow(k)
        assert found.dims == dims
        assert found.kind == kind


def allowed(flow: Flow, index: tuple[int, ...], place: tuple[int, ...]) -> bool:
    for r, i in zip(flow.dims, index):
        if r.axis is not None:
            start = r.stride * place[r.axis] + r.offset
            if not start <= i < start + r.width:
                return False
    return True


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_no_element_goes_elsewhere(make: Callable[[], Case]) -> None:
    """Each element of each input is changed by itself: what changes with it is what its class allows."""
    case = make()
    rng = np.random.default_rng(0)
    shapes = [tuple(map(int, case.graph.shape(n))) for n in case.inputs]
    values = {n: rng.normal(size=s).astype(np.float32) for n, s in zip(case.inputs, shapes)}
    out = case.graph.outputs[0]
    before = interpret(case.graph, values, np.float64)[out]
    moved = 0
    for k, name in enumerate(case.inputs):
        flow = case.flow(k)
        fixed: dict[int, set[int]] = {d: set() for d, r in enumerate(flow.dims) if r.kind == "injective"}
        for index in np.ndindex(shapes[k]):
            changed = values[name].copy()
            changed[index] += 1.5
            after = interpret(case.graph, values | {name: changed}, np.float64)[out]
            places = np.argwhere(after != before)
            moved += len(places)
            assert all(allowed(flow, index, tuple(p)) for p in places), (index, places, flow)
            if len(places):
                for d, seen in fixed.items():
                    seen.add(index[d])
        assert all(len(seen) == 1 for seen in fixed.values())
    assert moved


def test_sizes_that_are_known_when_running() -> None:
    c = Case((N, 4), (4,))
    total = c.b.reduce("sum", None, c.inputs[0], axes=[1], keepdims=True)
    c.finish(c.b.elementwise(lambda x, y, t: x * y / t, *c.inputs, total))
    assert c.flow(0).dims == (bijective(0), ALL) and c.flow(1).dims == (bijective(1),)
    assert c.flow(1).broadcast == (0,) and not c.flow(1).is_equal
    c = Case((2, N))
    part = c.b.slice(c.inputs[0], [1], [3], [1], [1])
    c.finish(c.b.elementwise(lambda v: -v, part))
    assert c.flow().dims == (OPAQUE, OPAQUE)  # for n = 2, the part would reach into the next row
    c.graph.assumptions.append(N - 3)
    assert c.flow().dims == (bijective(0), window(1, 1, 1, 1))


def test_equal_and_permuted() -> None:
    assert transposed().flow().kind == "bijective" and not transposed().flow().is_equal
    assert elementwise().flow(0).is_equal


def test_nothing_is_claimed_of_calls_and_scattered_rows() -> None:
    c = Case((3, 2))
    out = c.graph.add_array("y", (3, 2), F)
    c.b.library(HostCall, {"In0": c.inputs[0]}, {"Out0": out}, callback="a:b")
    assert c.finish(out).flow().dims == (OPAQUE, OPAQUE)
    c = Case((3, 2))
    index = c.graph.add_input("index", (3,), dace.int64)
    out = c.graph.add_array("y", (5, 2), F)
    c.b.library(IndexAdd, {"Index": index, "dY": c.inputs[0]}, {"dW": out})
    assert c.finish(out).flow().dims == (OPAQUE, bijective(1))


def test_a_window_read_at_one_place_is_no_single_index() -> None:
    mean = Flow((window(0, 1, 0, 3),), (7,))
    first = Flow((ONE,), (4,))
    assert mean.then(first).dims == (OPAQUE,) and Flow((bijective(0),), (7,)).then(first).dims == (ONE,)
    assert Flow((window(0, N, 0, 3),), (7,)).then(mean).dims == (OPAQUE,)
