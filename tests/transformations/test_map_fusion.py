"""Map fusion: what merges, what the merged kernel computes, and what must stay apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy

import daceopt.ops  # noqa: F401  (brings how operators are executed)
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import scalar
from daceopt.ir.text.render import render
from daceopt.transformations.local.map_fusion import MapFusion
from daceopt.transformations.local.reduction_lowering import ReductionLowering
from tests.transformations.lowered import F, apply, finish, kernels, misses, size_symbol, start


def softmax(rows: Any = 4) -> Graph:
    graph, b, (x,) = start((rows, 6))
    top = b.reduce("max", None, x, axes=[1], keepdims=True)
    e = b.elementwise(lambda v, m: sympy.exp(v - m), x, top)
    total = b.reduce("sum", None, e, axes=[1], keepdims=True)
    return finish(graph, b.elementwise(lambda v, s: v / s, e, total))


def test_softmax_becomes_one_loop_over_rows() -> None:
    graph = softmax()
    outcome = apply(MapFusion(), graph, special=True)
    assert len(outcome.sites) == 1
    assert (
        render(graph)
        == """graph test(x_1: float32[4, 6]) -> k_5
  k_5: float32[4, 6] = kernel k outer i0
    local k_2_l: float32[1]
    local k_3_l: float32[6]
    local k_4_l: float32[1]
    s0(i0 < 4, i1 < 6):
      in0 <- x_1[i0, i1]
      out0: float32 = in0
      out0 -> k_2_l[0] (max)
    s1(i0 < 4, i1 < 6):
      in0 <- x_1[i0, i1]
      in1 <- k_2_l[0]
      out0: float32 = exp(in0 - in1)
      out0_l: float32 = out0
      out0_l -> k_3_l[i1]
    s2(i0 < 4, i1 < 6):
      in0 <- k_3_l[i1]
      out0: float32 = in0
      out0 -> k_4_l[0] (sum)
    s3(i0 < 4, i1 < 6):
      in0 <- k_3_l[i1]
      in1 <- k_4_l[0]
      out0: float32 = in0/in1
      out0 -> k_5[i0, i1]
"""
    )


def test_symbolic_rows() -> None:
    graph = softmax(size_symbol())
    apply(MapFusion(), graph)
    assert len(graph.kernels()) == 1


def test_a_fused_kernel_fuses_again() -> None:
    graph = softmax()
    MapFusion(max_stages=2).run(graph)
    assert len(graph.kernels()) == 2
    apply(MapFusion(), graph)
    assert len(graph.kernels()) == 1
    assert apply(MapFusion(), graph).sites == []


def test_reductions_lowered_before_fuse_too() -> None:
    graph = softmax()
    apply(ReductionLowering(), graph)
    apply(MapFusion(), graph, special=True)
    assert len(graph.kernels()) == 1


def test_a_reduction_with_two_readers() -> None:
    graph, b, (x,) = start((4, 6))
    total = b.reduce("sum", None, x, axes=[1], keepdims=True)
    left = b.elementwise(lambda v, s: v / s, x, total)
    right = b.elementwise(lambda v, s: v * s, x, total)
    apply(MapFusion(), finish(graph, b.elementwise(lambda u, v: u + v, left, right), total))
    assert len(graph.kernels()) == 1


def test_outputs_and_saved_arrays_are_still_written() -> None:
    graph, b, (x,) = start((4, 6))
    kept = b.elementwise(sympy.tanh, x)
    saved = b.elementwise(sympy.exp, kept)
    graph.saved = [saved]
    total = b.reduce("sum", None, saved, axes=[1], keepdims=True)
    apply(MapFusion(), finish(graph, kept, b.elementwise(lambda v, s: v / s, saved, total)))
    (kernel,) = kernels(graph)
    assert {a.array for a in kernel.writes()} == {kept, saved, graph.outputs[1]}


def test_diamond() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    sides = [b.elementwise(lambda v: v + 1, top), b.elementwise(lambda v: v * 2, top)]
    apply(MapFusion(), finish(graph, b.elementwise(lambda u, v: u * v, *sides)))
    (kernel,) = kernels(graph)
    assert len(kernel.stages) == 1


def test_a_path_through_a_library_node_keeps_kernels_apart() -> None:
    graph, b, (x, w) = start((4, 6), (6, 6))
    top = b.elementwise(sympy.tanh, x)
    product = b.matmul(top, w)
    apply(MapFusion(), finish(graph, b.elementwise(lambda u, v: u + v, top, product)))
    assert len(graph.kernels()) == 2


def test_permuted_and_reshaped_reads_of_the_same_elements() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    across = b.elementwise(lambda v: v + 1, b.transpose(top, [1, 0]))
    split = b.elementwise(lambda v: v * 2, b.reshape(top, (2, 2, 3, 2)))
    apply(MapFusion(), finish(graph, across, split))
    assert len(graph.kernels()) == 1


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (lambda b, t: b.slice(t, [0], [2], [1], [0]), "walked differently"),
        (lambda b, t: b.slice(t, [1], [4], [1], [0]), "walked differently"),
        (lambda b, t: b.slice(t, [3], [-1], [-1], [0]), "walked differently"),
        (lambda b, t: b.slice(t, [0], [4], [2], [0]), "walked differently"),
        (lambda b, t: b.slice(t, [0], [1], [1], [0]), "walked differently"),
    ],
)
def test_other_elements(view: Any, reason: str) -> None:
    graph, b, (x,) = start((4, 4))
    top = b.elementwise(sympy.tanh, x)
    outcome = apply(MapFusion(), finish(graph, b.elementwise(lambda v: v + 1, view(b, top))))
    assert reason in misses(outcome)


def test_the_same_array_and_its_transpose() -> None:
    graph, b, (x,) = start((4, 4))
    top = b.elementwise(sympy.tanh, x)
    outcome = apply(MapFusion(), finish(graph, b.elementwise(lambda u, v: u + v, top, b.transpose(top, [1, 0]))))
    assert "read at other elements" in misses(outcome)


def test_run_time_indices_of_a_fresh_array() -> None:
    graph, b, (x,) = start((4, 6))
    top = b.elementwise(sympy.tanh, x)
    rows = graph.add_constant("rows", np.array([3, 0, 1, 1]))
    out = graph.add_array("out", (4, 6), F)
    reads = {
        "a": (top, lambda *i: (None, None)),
        "r": (rows, lambda *i: (i[0],)),
        "v": (x, lambda *i: i),
    }
    b.map((4, 6), reads, {"out": (out, lambda *i: i)}, lambda i, a, r, v: scalar.load(a, r, i[1]) + v)
    outcome = apply(MapFusion(), finish(graph, out))
    assert "read at a run-time index" in misses(outcome)


def test_a_local_array_read_again_over_loops_in_another_order() -> None:
    """The copy that the first merge made is indexed as it was, however the later merge orders the loops."""
    graph, b, (x, y) = start((2, 3), (3, 2))
    top = b.elementwise(sympy.tanh, x)
    turned = b.elementwise(lambda u, v: u + v, b.transpose(top, [1, 0]), y)
    total = b.reduce("sum", None, turned, axes=[0], keepdims=True)
    first = b.elementwise(lambda u, v: u * v, turned, total)
    again = b.elementwise(lambda u, v: u - v, b.transpose(first, [1, 0]), top)
    apply(MapFusion(), finish(graph, top, again))
    apply(MapFusion(), graph)


def test_siblings_share_their_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_profit, "SMALL", 0)
    graph, b, (x,) = start((4, 6))
    apply(MapFusion(), finish(graph, b.reduce("sum", None, x, axes=[0]), b.reduce("max", None, x, axes=[1])))
    (kernel,) = kernels(graph)
    assert len(kernel.stages) == 1 and len(kernel.reads()) == 1


@pytest.mark.parametrize(("rows", "apart"), [(256, True), (8, False)])
def test_what_turns_a_large_array_round_stays_apart_from_rows_that_are_reduced(rows: int, apart: bool) -> None:
    """Alone it runs in tiles; with the sums it would write each element in a line of its own."""
    graph, b, (x,) = start((rows, 128))
    head = b.elementwise(sympy.tanh, x)
    turned = b.elementwise(lambda v: 2 * v, b.transpose(head, [1, 0]))
    total = b.reduce("sum", None, head, axes=[1])
    apply(MapFusion(), finish(graph, head, total, turned))
    together = [k for k in kernels(graph) if {total, turned} <= {a.array for a in k.writes()}]
    assert not together if apart else len(together) == 1


def test_siblings_of_which_the_later_feeds_the_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_profit, "SMALL", 0)
    graph, b, (x,) = start((4, 4))
    top = b.elementwise(lambda v: v + 1, x)
    flipped = b.elementwise(lambda u, v: u * v, b.slice(top, [3], [-1], [-1], [0]), x)
    late = b.elementwise(lambda u, v: u - v, x, top)
    apply(MapFusion(), finish(graph, flipped, b.elementwise(sympy.exp, late)))


def test_a_vector_does_not_take_the_loops_of_its_reader_away() -> None:
    graph, b, (x, v) = start((4, 6), (6,))
    row = b.elementwise(sympy.tanh, v)
    outcome = apply(MapFusion(), finish(graph, b.elementwise(lambda u, w: u + w, x, row)))
    assert "runs over fewer parameters" in misses(outcome)


def test_rows_too_long_for_a_local_array() -> None:
    graph, b, (x,) = start((2, 20000))
    e = b.elementwise(sympy.exp, x)
    total = b.reduce("sum", None, e, axes=[1], keepdims=True)
    outcome = MapFusion().run(finish(graph, b.elementwise(lambda v, s: v / s, e, total)))
    assert any("more than 16384" in m for m in outcome.near_misses)


def test_random_numbers_belong_to_their_elements() -> None:
    """After renaming and splitting the loops, an element draws what it drew before."""
    graph, b, (x,) = start((4, 6))
    seed, out = graph.seed(), graph.add_array("noise", (4, 6), F)
    reads = {"v": (x, lambda *i: i), "seed": (seed, lambda *i: (0,))}

    def draw(i: Any, v: Any, seed: Any) -> Any:
        return v + scalar.cast(scalar.uniform(seed, 3, 6 * i[0] + i[1]), F)

    b.map((4, 6), reads, {"out": (out, lambda *i: i)}, draw)
    folded = b.elementwise(lambda v: v * 2, b.reshape(out, (2, 2, 6)))
    turned = b.elementwise(sympy.tanh, b.transpose(folded, [2, 0, 1]))
    apply(MapFusion(), finish(graph, turned))
    assert len(graph.kernels()) == 1
