"""Gradients of kernels: broadcasting, reductions, partial and overlapping reads, run-time indices, fused kernels."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy
import torch

from daceopt.autodiff import differentiate
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage, param
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from tests.autodiff.checking import check

BROADCASTS = [((3, 4), (4,)), ((3, 4), (3, 1)), ((3, 4), ()), ((3, 1, 4), (2, 1)), ((1, 4), (3, 1)), ((1,), (2, 3))]


@pytest.mark.parametrize("shapes", BROADCASTS)
def test_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(
        lambda b, x, y: b.elementwise(lambda u, v: u * v + sympy.sin(v), x, y),
        lambda x, y: x * y + torch.sin(y),
        *shapes,
    )


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_sum(axes: tuple[int, ...], keepdims: bool) -> None:
    check(
        lambda b, x: b.reduce("sum", lambda v: v * v, x, axes=axes, keepdims=keepdims),
        lambda x: (x * x).sum(axes, keepdim=keepdims),
        (2, 3, 4),
    )


@pytest.mark.parametrize("kind", ["max", "min"])
def test_extremum_shares_evenly_among_ties(kind: str) -> None:
    reference = {"max": torch.amax, "min": torch.amin}[kind]
    values = [[[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, -1.0, 5.0]]]
    check(lambda b, x: b.reduce(kind, lambda v: 2 * v, x, axes=[1]), lambda x: reference(2 * x, 1), values=values)


def test_product_with_no_one_and_two_zeros() -> None:
    values = [[[1.5, 2.0, -3.0], [0.0, 2.0, 4.0], [0.0, 0.0, 5.0]]]
    check(lambda b, x: b.reduce("prod", None, x, axes=[1]), lambda x: x.prod(1), values=values)


def test_several_results_of_one_kernel() -> None:
    check(
        lambda b, x, y: b.elementwise(lambda u, v: (u * v, u + sympy.exp(v)), x, y),
        lambda x, y: (x * y, x + y.exp()),
        (3, 4),
        (4,),
    )


@pytest.mark.parametrize(("value", "arrays"), [(lambda u, v, w: u + v + w, 1), (lambda u, v, w: u + v - w, 2)])
def test_terms_of_a_sum_share_their_gradient(value: Any, arrays: int) -> None:
    """One array for operands whose gradient is the same; the numbers of each are PyTorch's."""

    def build(b: Builder, *terms: str) -> str:
        return b.elementwise(lambda u, v, w: sympy.exp(value(u, v, w)), *terms)

    check(build, lambda x, y, z: value(x, y, z).exp(), (3, 4), (3, 4), (3, 4))
    graph = Graph("terms")
    terms = [graph.add_input(n, (3, 4), dace.float64) for n in "xyz"]
    graph.add_output(build(Builder(graph, "v"), *terms))
    gradients = differentiate(graph, graph.outputs, terms).grad_inputs
    assert None not in gradients.values() and len({*gradients.values()}) == arrays


def test_operands_of_other_shapes_have_gradients_of_their_own() -> None:
    check(
        lambda b, x, y, z: b.elementwise(lambda u, v, w: u + v + w, x, y, z),
        lambda x, y, z: x + y + z,
        (3, 4),
        (4,),
        (3, 4),
    )


def test_an_input_used_twice() -> None:
    check(lambda b, x: b.elementwise(lambda u, v: u * v, x, b.elementwise(sympy.exp, x)), lambda x: x * x.exp(), (3, 4))


def _mapped(extents: list[int], shape: tuple[int, ...], read: Any, write: Any) -> Any:
    def build(b: Builder, x: str) -> str:
        out = b.graph.add_array("out", shape, dace.float64)
        b.map(extents, {"a": (x, read)}, {"out": (out, *write)}, lambda p, a: a * a)
        return out

    return build


def test_overlapping_windows() -> None:
    build = _mapped([6, 3], (6,), lambda i, k: (2 * i + k,), (lambda i, k: (i,), "sum"))
    check(build, lambda x: (x.unfold(0, 3, 2) ** 2).sum(1)[:6], (14,))


def test_diagonal() -> None:
    check(_mapped([4], (4,), lambda i: (i, i), (lambda i: (i,),)), lambda x: x.diagonal() ** 2, (4, 5))


def test_reversed_and_strided_reads() -> None:
    check(_mapped([5], (5,), lambda i: (4 - i,), (lambda i: (i,),)), lambda x: x.flip(0) ** 2, (5,))
    check(_mapped([3], (3,), lambda i: (7 - 2 * i,), (lambda i: (i,),)), lambda x: x[[7, 5, 3]] ** 2, (9,))


def test_fixed_element() -> None:
    check(_mapped([4], (4,), lambda i: (i, 1), (lambda i: (i,),)), lambda x: x[:, 1] ** 2, (4, 3))


def _gathered(index: Any, load: Any, extents: tuple[int, ...], rank: int = 2) -> Any:
    def build(b: Builder, w: str, k: str) -> str:
        out = b.graph.add_array("out", extents, dace.float64)
        reads = {"w": (w, lambda *i: (None,) * rank), "k": (k, index)}
        b.map(list(extents), reads, {"out": (out, lambda *i: i)}, load)
        return out

    return build


def test_embedding() -> None:
    build = _gathered(lambda n, s, d: (n, s), lambda p, w, k: scalar.load(w, k, p[2]), (2, 3, 5))
    check(build, lambda w, k: torch.nn.functional.embedding(k, w), (7, 5), integers=[[[0, 1, 6], [1, 1, 3]]])


def test_gather_along_the_last_axis() -> None:
    build = _gathered(lambda i, n: (n,), lambda p, w, k: scalar.load(w, p[0], k) ** 2, (5, 3))
    check(build, lambda w, k: w[:, k] ** 2, (5, 7), integers=[[0, 1, 1]])


def test_gather_of_single_elements() -> None:
    build = _gathered(lambda i, n: (i, n), lambda p, w, k: scalar.load(w, k, k + 1) ** 2, (2, 3))
    check(build, lambda w, k: w[k, k + 1] ** 2, (5, 6), integers=[[[0, 1, 1], [4, 4, 4]]])


def test_gather_whose_index_varies_along_a_row() -> None:
    build = _gathered(lambda i, n: (i, n), lambda p, w, k: scalar.load(w, k, p[1]) ** 2, (2, 3))
    check(build, lambda w, k: torch.gather(w, 0, k) ** 2, (5, 3), integers=[[[0, 1, 1], [4, 4, 4]]])


def test_an_empty_part_has_a_gradient_of_zero() -> None:
    build = _mapped([2, 0], (2, 0), lambda i, j: (i, j + 1), (lambda i, j: (i, j),))
    check(build, lambda x: x[:, 1:1] ** 2, (2, 3))


def _fused_softmax(b: Builder, x: str) -> str:
    """Rows of softmax without the maximum: three stages, the exponentials and their sum local to a row."""
    shape = b.graph.shape(x)
    out = b.graph.add_array("out", shape, dace.float64)
    i, j = param(0), param(1)
    a, e, s, y = (scalar.symbol(n, dace.float64) for n in ("a", "e", "s", "y"))
    stages = [
        Stage(
            (i, j), {"a": Access(x, (i, j))}, {"e": Access("exps", (j,))}, (Assignment(e, sympy.exp(a), dace.float64),)
        ),
        Stage(
            (i, j), {"e": Access("exps", (j,))}, {"s": Access("row", (0,), "sum")}, (Assignment(s, e, dace.float64),)
        ),
        Stage(
            (i, j),
            {"e": Access("exps", (j,)), "s": Access("row", (0,))},
            {"y": Access(out, (i, j))},
            (Assignment(y, e / s, dace.float64),),
        ),
    ]
    local = {"exps": (dace.float64, (shape[1],)), "row": (dace.float64, (1,))}
    b.graph.add_kernel(Kernel("softmax", {i: shape[0], j: shape[1]}, stages, (i,), local))
    return out


def test_fused_kernel_is_recomputed_from_its_input() -> None:
    recomputed, stored = check(_fused_softmax, lambda x: x.softmax(1), (3, 5))
    assert recomputed.saved == []
    assert stored.saved == stored.forward.outputs


def test_integers_carry_no_gradient() -> None:
    derivative = check(
        lambda b, x, k: b.elementwise(lambda u, n: u * n, x, k), lambda x, k: x * k, (3,), integers=[[1, 2, 3]]
    )[0]
    assert len(derivative.forward_inputs_needed) == 1
