"""Sums over the batch in instances: what each adds gives the sum of all, and what is no such sum is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest

from daceopt.codegen import region_bounds
from daceopt.ir.control.region import tidy
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes import library
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.splits import CannotSplit
from daceopt.splits.along import split_axes
from daceopt.splits.rolling import roll
from daceopt.splits.sums import cut_or_sum
from transformations.local.map_fusion import MapFusion
from transformations.local.reduction_lowering import ReductionLowering

F = dace.float32
N = 7


def _product(b: Builder, x: str, **attributes: Any) -> str:
    """The gradient of a linear layer's weights."""
    y = b.elementwise(lambda v: v * v, x)
    w = b.graph.add_array("dW", (5, 5), F)
    b.library(library.Contraction, {"A": b.transpose(y, (1, 0)), "B": x}, {"Y": w}, **attributes)
    return w


def _bias(b: Builder, x: str) -> str:
    return b.reduce("sum", lambda v: v * 0.5, b.elementwise(lambda v: v * v, x), axes=(0,))


def _lowered(b: Builder, x: str) -> str:
    """Summed in a local, as reductions over what stands in rows are."""
    name = b.reduce("sum", None, b.elementwise(lambda v: v * v, x), axes=(0,))
    ReductionLowering().run(b.graph)
    return name


def _turned(b: Builder, x: str) -> str:
    """A result whose rows do not stand one behind the other, which loops leave."""
    w = b.graph.add_array("dW", (5, 5), F, (1, 5))
    b.library(library.Contraction, {"A": b.transpose(x, (1, 0)), "B": b.elementwise(lambda v: v * v, x)}, {"Y": w})
    return w


def _convolution(b: Builder, x: str) -> str:
    images = b.reshape(b.elementwise(lambda v: v * 2, x), (N, 1, 5))
    gradient = b.elementwise(lambda v: v + 1, images)
    w = b.graph.add_array("dW", (1, 1, 3), F)
    b.library(library.ConvolutionBackwardWeights, {"X": images, "dY": gradient}, {"dW": w}, pads=[1, 1])
    return w


def _rows(b: Builder, x: str) -> str:
    """The gradient of a table."""
    index = b.graph.add_input("index", (N,), dace.int64)
    w = b.graph.add_array("dW", (4, 5), F)
    b.library(library.IndexAdd, {"Index": index, "dY": b.elementwise(lambda v: v * v, x)}, {"dW": w})
    return w


SUMS: dict[str, Callable[[Builder, str], str]] = {
    f.__name__[1:]: f for f in (_product, _bias, _lowered, _turned, _convolution, _rows)
}


def _graph(build: Callable[[Builder, str], str]) -> Graph:
    graph = Graph("sum")
    b = Builder(graph)
    graph.add_output(b.elementwise(lambda v: v + 1, build(b, graph.add_input("x", (N, 5), F))))
    return graph


def _rolled(graph: Graph, items: int) -> Graph:
    twin = graph.copy()
    axis = next(a for a in split_axes(twin) if a.dims.get(twin.inputs[0]) == 0)
    cuts = {}
    for node in twin.nodes():
        try:
            cuts[node] = cut_or_sum(twin, node, axis)
        except CannotSplit:
            continue
    assert any(cut.summed for cut in cuts.values())
    roll(twin, list(cuts), cuts, axis, items)
    twin.prune()
    tidy(twin)
    twin.validate()
    region_bounds.check(twin)
    return twin


@pytest.mark.parametrize("items", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", SUMS)
def test_what_instances_add_is_the_sum_over_all(kind: str, items: int) -> None:
    graph = _graph(SUMS[kind])
    rng = np.random.default_rng(0)
    feeds = dict(zip(graph.inputs, (rng.standard_normal((N, 5)), rng.integers(-4, 4, N)), strict=False))
    twin = _rolled(graph, items)
    (name,), (other,) = graph.outputs, twin.outputs
    wanted, found = interpret(graph, feeds, np.float64)[name], interpret(twin, feeds, np.float64)[other]
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


def test_a_kernel_that_writes_rows_and_sums_them() -> None:
    """What fusion makes of a gradient and the sum over it."""
    graph = Graph("both")
    b, x = Builder(graph), graph.add_input("x", (N, 5), F)
    y = b.elementwise(lambda v: v * v, x)
    graph.add_output(y)
    graph.add_output(b.reduce("sum", None, y, axes=(0,)))
    MapFusion().run(graph)
    feeds = {x: np.random.default_rng(0).standard_normal((N, 5))}
    twin = _rolled(graph, 3)
    one, other = interpret(graph, feeds, np.float64), interpret(twin, feeds, np.float64)
    for a, b_ in zip(graph.outputs, twin.outputs, strict=True):
        np.testing.assert_allclose(other[b_], one[a], rtol=1e-13, atol=1e-13)


def _why(build: Callable[[Builder, str], str]) -> str:
    graph = Graph("refused")
    b, x = Builder(graph), graph.add_input("x", (N, 5), F)
    graph.add_output(b.elementwise(lambda v: v + 1, x))
    graph.add_output(build(b, x))
    axis = next(a for a in split_axes(graph) if a.dims.get(x) == 0)
    with pytest.raises(CannotSplit) as error:
        cut_or_sum(graph, graph.nodes()[-1], axis)
    return str(error.value)


def _narrow(b: Builder, x: str) -> str:
    return b.reduce("sum", None, x, axes=(0,), dtype=types.BFLOAT16)


def _shifted(b: Builder, x: str) -> str:
    """Neighbours in a sum: its items are not those of what it reads."""
    out = b.graph.add_array("sum", (5,), F)
    reads = {"a": (x, lambda i, j: (i, j)), "b": (x, lambda i, j: (N - 1 - i, j))}
    b.map((N, 5), reads, {"out": (out, lambda i, j: (j,), "sum")}, lambda _, a, b: a * b)
    return out


def _with_bias(b: Builder, x: str) -> str:
    y, bias = b.elementwise(lambda v: v * v, x), b.graph.add_input("bias", (5,), F)
    w = b.graph.add_array("dW", (5, 5), F)
    b.library(library.Contraction, {"A": b.transpose(y, (1, 0)), "B": x, "Bias": bias}, {"Y": w})
    return w


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_narrow, "of bfloat16 would be rounded in each instance"),
        (_shifted, "no one loop over the 7 items"),
        (_with_bias, "adds Bias to the sum"),
        (lambda b, x: _product(b, x, activation="relu"), "applies relu to the sum"),
        (lambda b, x: b.reduce("max", None, x, axes=(0,)), "is no sum over the 7 items"),
        (lambda b, x: b.reduce("sum", None, b.graph.add_input("u", (3, 2), F), axes=(0,)), "no one loop over"),
        (lambda b, x: b.matmul(b.graph.add_input("u", (4, 9), F), b.graph.add_input("v", (9, 4), F)), "does not sum"),
    ],
)
def test_what_is_no_sum_over_the_items_is_refused(build: Callable[[Builder, str], str], reason: str) -> None:
    assert reason in _why(build)
