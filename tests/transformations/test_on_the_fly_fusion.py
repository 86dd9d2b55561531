"""Fusion at other elements, replication and fission: before, after, and what is refused."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import daceopt.ops  # noqa: F401  (brings how operators are executed)
from daceopt import optimized_module
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import scalar
from daceopt.ir.text.render import render
from daceopt.passes.transform import Transformation
from daceopt.transformations.local.map_fission import MapFission
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.local.map_replication import MapReplication
from daceopt.transformations.local.on_the_fly_fusion import OnTheFlyFusion
from daceopt.transformations.local.tasklet_fusion import TaskletFusion
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import SHAPES, F, RandomGraph, apply, finish, misses, size_symbol, start

NUMBER = st.integers(0, 11)
STEPS = st.lists(st.tuples(NUMBER, NUMBER, st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=10)
INPUTS = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)


def gated(rows: Any = 4) -> Graph:
    """A gated linear unit: one half of each row decides about the other."""
    graph, b, (x,) = start((rows, 6))
    t = b.elementwise(sympy.tanh, x)
    left, right = b.slice(t, [0], [3], [1], [1]), b.slice(t, [3], [6], [1], [1])
    return finish(graph, b.elementwise(lambda u, v: u * scalar.sigmoid(v), left, right))


class GatedActivation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = nn.functional.gelu(x).chunk(2, -1)
        return left * right


@pytest.mark.parametrize("trains", [False, True])
def test_the_default_recipe_gates_an_activation_in_one_kernel(trains: bool) -> None:
    torch.manual_seed(0)
    ours = optimized_module(GatedActivation(), recipe="cpu", verify="numerics", fallback="raise")
    x = torch.randn(7, 24)
    found, exact, eager = (
        _run(net, v, trains) for net, v in ((ours, x), (GatedActivation(), x.double()), (GatedActivation(), x))
    )
    for mine, right, theirs in zip(found, exact, eager, strict=True):
        assert_within_rounding(mine, right, theirs)
    sites = {s["graph"]: s["sites"] for s in ours.daceopt.history if s["name"] == "on-the-fly-fusion"}
    assert len(sites) == 1 + trains and all(sites.values())


def _run(net: nn.Module, x: torch.Tensor, trains: bool) -> list[torch.Tensor]:
    x = x.detach().requires_grad_(trains)
    y = net(x)
    return (
        [y, *torch.autograd.grad(y, x, torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))] if trains else [y]
    )


def test_halves_of_a_row() -> None:
    graph = gated()
    assert "walked differently" in misses(apply(MapFusion(), graph))
    apply(OnTheFlyFusion(), graph, special=True)
    assert (
        render(graph)
        == """graph test(x_1: float32[4, 6]) -> k_5
  k_5: float32[4, 3] = kernel k
    s0(i0 < 4, i1 < 3):
      in0 <- x_1[i0, i1]
      in1 <- x_1[i0, i1 + 3]
      t0: float32 = tanh(in0)
      t1: float32 = tanh(in1)
      out0: float32 = t0*sigmoid(t1)
      out0 -> k_5[i0, i1]
"""
    )


def test_open_sizes() -> None:
    graph = gated(size_symbol())
    apply(OnTheFlyFusion(), graph)
    assert len(graph.kernels()) == 1


@pytest.mark.parametrize(
    "view",
    [
        lambda b, t: b.slice(t, [0], [2], [1], [0]),
        lambda b, t: b.slice(t, [1], [4], [1], [0]),
        lambda b, t: b.slice(t, [3], [-1], [-1], [0]),
        lambda b, t: b.slice(t, [0], [4], [2], [0]),
        lambda b, t: b.slice(t, [2], [3], [1], [0]),
        lambda b, t: b.transpose(b.slice(t, [1], [4], [1], [0]), [1, 0]),
        lambda b, t: b.slice(b.slice(t, [1], [4], [1], [0]), [0], [3], [2], [1]),
    ],
)
def test_shifted_flipped_stepped_and_partial_reads(view: Any) -> None:
    graph, b, (x,) = start((4, 4))
    top = b.elementwise(lambda v: v * v + 1, x)
    apply(OnTheFlyFusion(), finish(graph, b.elementwise(lambda v: v + 1, view(b, top))), special=True)
    assert len(graph.kernels()) == 1


def test_several_readers_of_disjoint_parts() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.exp, x)
    left = b.elementwise(lambda v: v + 1, b.slice(top, [0], [3], [1], [1]))
    total = b.reduce("sum", None, b.slice(top, [3], [6], [1], [1]), axes=[1])
    apply(OnTheFlyFusion(), finish(graph, left, total))
    assert len(graph.kernels()) == 2


def test_equal_and_permuted_spaces_are_left_to_map_fusion() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    finish(graph, b.elementwise(lambda v: v + 1, b.transpose(top, [1, 0])))
    assert misses(apply(OnTheFlyFusion(), graph)) == ""
    apply(MapFusion(), graph)
    assert len(graph.kernels()) == 1


def _neighbours(recompute: float) -> Any:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    left, right = b.slice(top, [0], [5], [1], [1]), b.slice(top, [1], [6], [1], [1])
    return apply(OnTheFlyFusion(recompute=recompute), finish(graph, b.elementwise(lambda u, v: u - v, left, right)))


def test_a_chain_of_halves() -> None:
    """Code that was put into a statement already has names of its own."""
    graph, b, (x,) = start((4, 8))
    for _ in range(3):
        t, width = b.elementwise(sympy.tanh, x), graph.shape(x)[1] // 2
        left, right = b.slice(t, [0], [width], [1], [1]), b.slice(t, [width], [2 * width], [1], [1])
        x = b.elementwise(lambda u, v: u * v, left, right)
    apply(OnTheFlyFusion(), finish(graph, x))
    apply(OnTheFlyFusion(recompute=8), graph)
    assert len(graph.kernels()) == 1


def test_what_is_computed_twice_is_an_option() -> None:
    assert "would be computed 1.67 times" in misses(_neighbours(1.0))
    assert len(_neighbours(2.0).sites) == 1


def test_what_is_kept_reduced_gathered_or_reshaped_stays() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    half = b.elementwise(lambda v: v + 1, b.slice(top, [0], [2], [1], [0]))
    assert misses(apply(OnTheFlyFusion(), finish(graph, top, half))) == ""

    graph, b, (x,) = start((4, 6))
    total = b.reduce("sum", None, x, axes=[1])
    half = b.elementwise(lambda v: v + 1, b.slice(total, [0], [2], [1], [0]))
    assert "reduces" in misses(apply(OnTheFlyFusion(), finish(graph, half)))

    graph, b, (x,) = start((4, 6))
    half = b.slice(b.elementwise(sympy.tanh, x), [0], [2], [1], [0])
    odd = b.elementwise(lambda v: v + 1, b.reshape(half, (3, 4)))
    assert "no index for each dimension" in misses(apply(OnTheFlyFusion(), finish(graph, odd)))

    graph, b, (x,) = start((4, 6))
    top, out = b.elementwise(sympy.tanh, x), graph.add_array("out", (2, 6), F)
    rows = graph.add_constant("rows", np.array([3, 0]))
    reads = {"a": (top, lambda *i: (None, None)), "r": (rows, lambda *i: (i[0],))}
    b.map((2, 6), reads, {"out": (out, lambda *i: i)}, lambda i, a, r: scalar.load(a, r, i[1]))
    assert "run-time index" in misses(apply(OnTheFlyFusion(), finish(graph, out)))


def test_too_long_a_statement_and_wrong_options() -> None:
    assert "assignments" in misses(apply(OnTheFlyFusion(max_assignments=2), gated()))
    with pytest.raises(DaceoptError, match="expected recompute above 0"):
        OnTheFlyFusion(recompute=0)


def test_random_numbers_belong_to_their_elements() -> None:
    graph, b, (x,) = start((4, 6))
    seed, out = graph.seed(), graph.add_array("noise", (4, 6), F)
    reads = {"v": (x, lambda *i: i), "seed": (seed, lambda *i: (0,))}
    draw = lambda i, v, seed: v + scalar.cast(scalar.uniform(seed, 3, 6 * i[0] + i[1]), F)  # noqa: E731
    b.map((4, 6), reads, {"out": (out, lambda *i: i)}, draw)
    apply(OnTheFlyFusion(), finish(graph, b.elementwise(lambda v: v * 2, b.slice(out, [3], [0], [-1], [0]))))
    assert len(graph.kernels()) == 1


def test_narrow_results_are_the_same_to_all() -> None:
    graph, b, (x,) = start((4, 6))
    half = b.cast(x, dace.float16)
    apply(OnTheFlyFusion(), finish(graph, b.cast(b.slice(half, [0], [2], [1], [0]), F)))
    assert len(graph.kernels()) == 1


@settings(max_examples=15)
@given(shapes=INPUTS, steps=STEPS)
def test_random_graphs_keep_their_values(shapes: list, steps: list) -> None:
    graph = RandomGraph(shapes, steps).graph
    for step in (OnTheFlyFusion(recompute=4), MapReplication(), OnTheFlyFusion(recompute=4), MapFusion(), MapFission()):
        apply(step, graph)


# ---------------------------------------------------------------- replication


def shared() -> Graph:
    """A result that a kernel, a transposed reader, a reduction and a product read."""
    graph, b, (x,) = start((4, 6))
    t = b.elementwise(sympy.tanh, x)
    turned = b.elementwise(lambda v: v + 1, b.transpose(t, [1, 0]))
    total = b.reduce("sum", None, t, axes=[1])
    return finish(graph, turned, total, b.matmul(t, b.transpose(x, [1, 0])))


def test_each_reader_gets_its_own() -> None:
    graph = shared()
    apply(MapReplication(), graph)
    assert len(graph.kernels()) == 5 and all(len(graph.all_consumers(n)) == 1 for n in _written(graph)[:3])
    assert apply(MapReplication(), graph).sites == []
    apply(TaskletFusion(), graph)
    assert len(graph.kernels()) == 3  # only the copy for the product is left


def _written(graph: Graph) -> list[str]:
    return [n for k in graph.kernels() for n in graph.outputs_of(k) if n is not None and n not in graph.outputs]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("map-replication{max_readers=2}", "3 nodes read"),
        ("map-replication{max_operations=1}", "operations, more than max_operations=1"),
    ],
)
def test_what_costs_too_much_is_not_replicated(step: str, reason: str) -> None:
    assert reason in misses(apply(Transformation.parse(step), shared()))
    assert misses(apply(Transformation.parse("map-replication{array='other*'}"), shared())) == ""
    with pytest.raises(DaceoptError, match="expected 2 or more"):
        MapReplication(max_readers=1)


def test_reductions_and_outputs_are_not_replicated() -> None:
    graph, b, (x,) = start((4, 6))
    total = b.reduce("sum", None, x, axes=[1])
    finish(graph, b.elementwise(sympy.exp, total), b.elementwise(sympy.tanh, total))
    assert "reduces" in misses(apply(MapReplication(), graph))
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.exp, x)
    finish(graph, top, b.elementwise(sympy.tanh, top), b.elementwise(lambda v: v + 1, top))
    assert "outlives the program" in misses(apply(MapReplication(), graph))


# ---------------------------------------------------------------- fission


def test_statements_become_kernels_again() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.reduce("max", None, x, axes=[1], keepdims=True)
    finish(graph, b.elementwise(lambda v, m: v - m, x, top))
    apply(MapFusion(), graph)
    assert len(graph.kernels()) == 1
    assert apply(MapFission(kernel="softmax*"), graph).sites == []
    apply(MapFission(), graph)
    assert len(graph.kernels()) == 2
    assert apply(MapFission(), graph).sites == []
