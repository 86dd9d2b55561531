"""Layouts by an integer program: what changes, that it is the best choice, and that only strides change."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt import optimized_module
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, Pool
from daceopt.ops.core import algorithm
from daceopt.transformations.layout._layout_costs import channels_last_strides
from daceopt.transformations.layout._layout_program import LayoutProblem, NodeAccesses, Walked
from daceopt.transformations.layout.layout_search import LayoutSearch
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import F, apply, finish, size_symbol, start

LAST = (200, 1, 40, 8)


def convolution(b: Builder, x: str, w: str) -> str:
    y = b.graph.add_array("y", (b.graph.shape(x)[0], 8, 5, 5), F)
    b.library(Convolution, {"X": x, "W": w}, {"Y": y}, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], group=1)
    return y


def image() -> tuple[Graph, Builder, str]:
    graph, b, (x, w) = start((2, 3, 5, 5), (8, 3, 3, 3))
    return graph, b, convolution(b, x, w)


@pytest.mark.parametrize(
    ("shape", "strides"), [((2, 3, 7), (21, 1, 3)), ((2, 3, 5, 7), (105, 1, 21, 3)), ((2, 3), (3, 1))]
)
def test_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert channels_last_strides(shape) == strides


def test_results_and_what_is_computed_from_them() -> None:
    graph, b, y = image()
    z = b.elementwise(lambda v: v + 1, y)
    outcome = apply(LayoutSearch(), finish(graph, convolution(b, z, graph.add_input("w", (8, 8, 3, 3), F))))
    assert len(outcome.sites) == 2
    assert graph.strides(y) == graph.strides(z) == LAST
    assert graph.strides(graph.outputs[0]) == (200, 25, 5, 1)
    assert apply(LayoutSearch(), graph).sites == []


def test_one_kernel_of_a_chain_turns_the_image() -> None:
    graph, b, y = image()
    z = b.elementwise(lambda v: v + 1, y)
    apply(LayoutSearch(), finish(graph, b.elementwise(lambda v: v * 2, z)))
    assert graph.strides(y) == LAST and graph.strides(z) == (200, 25, 5, 1)


def test_what_a_kernel_makes_for_a_convolution() -> None:
    """The kernel reads rows and writes channels last, so that the convolution need not copy."""
    graph, b, (x, w) = start((2, 8, 5, 5), (8, 8, 3, 3))
    t = b.elementwise(lambda v: v + 1, x)
    apply(LayoutSearch(), finish(graph, convolution(b, t, w)))
    assert graph.strides(t) == LAST


def test_views_follow() -> None:
    """Channels innermost for what comes next, as in ConvNeXt: the permuted view is contiguous then."""
    graph, b, y = image()
    rows = b.transpose(y, [0, 2, 3, 1])
    mean = b.reduce("sum", None, rows, axes=[3], keepdims=True)
    apply(LayoutSearch(), finish(graph, b.elementwise(lambda v, m: v - m, rows, mean)))
    assert graph.strides(y) == LAST and graph.strides(rows) == (200, 40, 8, 1)


def test_products_take_rows_or_columns() -> None:
    graph, b, y = image()
    scores = b.matmul(y, graph.add_input("v", (5, 6), F))
    apply(LayoutSearch(), finish(graph, b.elementwise(lambda v: v + 1, scores)))
    assert graph.strides(scores) == (240, 30, 6, 1) and graph.strides(y) == (200, 25, 5, 1)

    graph, b, y = image()
    channels = b.matmul(b.transpose(y, [0, 2, 3, 1]), graph.add_input("v", (8, 6), F))
    apply(LayoutSearch(), finish(graph, channels))
    assert graph.strides(y) == LAST


NAMES = ("a", "b", "c", "d", "e", "f")  # the last two have one layout
SECONDS = st.floats(0.125, 8)
MODE = st.integers(0, 2)
OWN = st.one_of(st.just({}), st.fixed_dictionaries(dict.fromkeys(range(3), SECONDS)))


def walks(layouts: int) -> st.SearchStrategy[list[NodeAccesses]]:
    access = st.builds(Walked, st.sampled_from(NAMES), st.tuples(*[MODE] * layouts), SECONDS)
    return st.lists(st.builds(NodeAccesses, st.lists(access, min_size=1, max_size=4), OWN), max_size=6)


def costs(layouts: int) -> st.SearchStrategy[list[tuple[float, ...]]]:
    others = st.tuples(*[st.floats(-4, 4)] * (layouts - 1))
    return st.lists(others.map(lambda own: (0.0, *own)), min_size=4, max_size=4)


@pytest.mark.parametrize("layouts", [2, 3])
@settings(max_examples=25)
@given(data=st.data())
def test_the_program_finds_the_best_of_all_choices(layouts: int, data: st.DataObject) -> None:
    problem = LayoutProblem(dict(zip(NAMES, data.draw(costs(layouts)))), data.draw(walks(layouts)))
    choices = (dict(zip(NAMES, own)) for own in product(range(layouts), repeat=4))
    assert problem.seconds(problem.solve()) <= min(map(problem.seconds, choices)) + 1e-5


def test_a_slice_of_channels_is_copied_in_either_layout() -> None:
    """So an image that is read in slices alone stays as it is."""
    graph, b, (x, w) = start((2, 8, 5, 5), (4, 4, 3, 3))
    whole = b.elementwise(lambda v: v + 1, x)
    halves = [b.slice(whole, [k], [k + 4], [1], [1]) for k in (0, 4)]
    results = [graph.add_array("y", (2, 4, 5, 5), F) for _ in halves]
    for half, y in zip(halves, results):
        b.library(Convolution, {"X": half, "W": w}, {"Y": y}, pads=[1, 1, 1, 1])
    apply(LayoutSearch(), finish(graph, *results))
    assert graph.strides(whole) == (200, 25, 5, 1)


def test_symbolic_batch() -> None:
    graph, b, (x, w) = start((size_symbol(), 3, 5, 5), (8, 3, 3, 3))
    y = convolution(b, x, w)
    apply(LayoutSearch(), finish(graph, b.elementwise(lambda v: v + 1, y)))
    assert graph.strides(y) == LAST


def test_arrays_with_views_stay() -> None:
    graph, b, y = image()
    flat = b.reshape(y, (2, 200))
    outcome = apply(LayoutSearch(), finish(graph, b.elementwise(lambda v: v + 1, flat)))
    assert outcome.sites == [] and graph.strides(y) == (200, 25, 5, 1)


def test_what_an_algorithm_reads_stays() -> None:
    graph, b, y = image()
    result = graph.add_array("result", graph.shape(y), F)
    algorithm.call(b, "cumulate", [y], [result], [*algorithm.extents_around((2, 8, 5, 5), 1), 0, 0, 0])
    assert apply(LayoutSearch(), finish(graph, result)).sites == [] and graph.strides(y) == (200, 25, 5, 1)


def test_kernels_without_convolutions_stay() -> None:
    graph, b, (x,) = start((2, 3, 5, 5))
    middle = b.elementwise(lambda v: v + 1, x)
    assert apply(LayoutSearch(), finish(graph, b.elementwise(lambda v: v + 1, middle))).sites == []


def test_pools_and_reductions_after_them() -> None:
    graph, b, (x,) = start((2, 8, 10, 10))
    y = graph.add_array("y", (2, 8, 5, 5), F)
    b.library(Pool, {"X": x}, {"Y": y}, kind="max", kernel=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0], dilations=[1, 1])
    outcome = apply(LayoutSearch(), finish(graph, b.reduce("sum", None, y, axes=[2, 3])))
    assert len(outcome.sites) == 1 and graph.strides(y) == LAST


class _Mixed(torch.nn.Module):
    """The backward pass reads the saved activation as an image and, through a view, as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 3, padding=1)
        self.rows = torch.nn.Linear(5, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).tanh()
        return self.second(y).exp().sum() + (self.rows(y) ** 2).sum()


def test_saved_arrays_that_the_backward_pass_reads_through_views() -> None:
    torch.manual_seed(0)
    module, x = _Mixed(), torch.randn(2, 3, 5, 5)
    parameters = list(module.parameters())
    single = torch.autograd.grad(module(x), parameters)
    double = copy.deepcopy(module).double()
    exact = torch.autograd.grad(double(x.double()), list(double.parameters()))
    ours = torch.autograd.grad(optimized_module(module, fallback="raise")(x), parameters)
    for a, b, c in zip(ours, exact, single, strict=True):
        assert_within_rounding(a, b, c)


def test_an_array_of_parts_changes_as_a_whole() -> None:
    graph, b, (x, w) = start((2, 3, 6, 6), (4, 3, 1, 1))
    whole = graph.add_array("whole", (2, 7, 6, 6), F)
    first, second = (graph.add_part(whole, "p", [0, k, 0, 0], [2, n, 6, 6]) for k, n in ((0, 4), (4, 3)))
    b.library(Convolution, {"X": x, "W": w}, {"Y": first})
    b.elementwise(lambda v: v * v, x, out=second)
    result = graph.add_array("result", (2, 8, 6, 6), F)
    b.library(Convolution, {"X": whole, "W": graph.add_input("w", (8, 7, 1, 1), F)}, {"Y": result})
    finish(graph, result)
    LayoutSearch().run(graph)
    graph.validate()
    strides = channels_last_strides((2, 7, 6, 6))
    assert graph.strides(whole) == graph.strides(first) == graph.strides(second) == strides
