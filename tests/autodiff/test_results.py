"""Gradients that read what the forward wrote instead of what it read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.autodiff import Derivative, differentiate
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.functions import ge, gt, le, lt, select
from tests.autodiff.checking import Problem, check, run

EDGES = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 6.0, 6.1, 5.9, 1e-310, -1e-310, 3.0, -3.0]


def relu(x: Any) -> Any:
    return select(le(x, 0), 0, x)


def relu6(x: Any) -> Any:
    return select(ge(x, 6.0), 6.0, select(le(x, 0), 0, x))


def clamp(x: Any) -> Any:
    return select(gt(x, 6.0), 6.0, select(lt(x, 0), 0, x))


def _between_products(form: Callable[[Any], Any]) -> Callable[..., Any]:
    """f(x w) v: a product makes what ``form`` reads, and another one reads what it makes."""
    return lambda b, x, w, v: b.matmul(b.elementwise(form, b.matmul(x, w)), v)


@pytest.mark.parametrize(
    "form, reference",
    [
        (relu, torch.relu),
        (relu6, torch.nn.functional.relu6),
        (lambda x: scalar.cast(relu6(x), dace.float64), torch.nn.functional.relu6),
        (sympy.tanh, torch.tanh),
        (scalar.sigmoid, torch.sigmoid),
        (sympy.exp, torch.exp),
    ],
)
def test_the_result_alone_is_stored(form: Callable[[Any], Any], reference: Callable[..., Any]) -> None:
    derivatives = check(_between_products(form), lambda x, w, v: reference(x @ w) @ v, (3, 4), (4, 5), (5, 6))
    for derivative in derivatives:
        (saved,) = derivative.saved
        (maker,) = derivative.forward.producers(saved)
        assert maker in derivative.forward.kernels()


@pytest.mark.parametrize(
    "form, reference",
    [
        (clamp, lambda x: torch.clamp(x, 0, 6)),  # passes at its bounds, which its result does not tell
        (sympy.sin, torch.sin),
        (lambda x: select(gt(x, 0), x, 0.1 * x), lambda x: torch.nn.functional.leaky_relu(x, 0.1)),
        (lambda x: x * scalar.sigmoid(x), torch.nn.functional.silu),
    ],
)
def test_what_the_result_does_not_tell_is_read(form: Callable[[Any], Any], reference: Callable[..., Any]) -> None:
    check(_between_products(form), lambda x, w, v: reference(x @ w) @ v, (3, 4), (4, 5), (5, 6))
    values = [np.resize(EDGES[3:], 12).reshape(3, 4)]
    (recomputed, _) = check(lambda b, x: b.elementwise(form, x), reference, values=values)
    assert recomputed.saved == [] and len(recomputed.forward_inputs_needed) == 1


@pytest.mark.parametrize("form, reference", [(relu, torch.relu), (relu6, torch.nn.functional.relu6)])
def test_edges_are_pytorchs(form: Callable[[Any], Any], reference: Callable[..., Any]) -> None:
    edges = EDGES[form is relu6 :]  # PyTorch's relu6 has two gradients of NaN, in vectors and at their end
    problem = Problem(lambda b, x: b.elementwise(form, x), values=[edges])
    derivative = problem.derive("store")
    assert derivative.saved == derivative.forward.outputs and derivative.forward_inputs_needed == []
    for seed in (1.0, float("inf"), float("nan")):
        x = torch.tensor(edges, dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad(reference(x), x, torch.full((len(edges),), seed, dtype=torch.float64))
        _, found = problem.execute(derivative, {problem.graph.outputs[0]: np.full(len(edges), seed)})
        (gradient,) = found.values()
        np.testing.assert_array_equal(gradient, expected.numpy())


def test_a_sum_in_front_of_it_is_not_read() -> None:
    """relu(a + b): neither term is stored."""

    def build(b: Builder, x: str, w: str, v: str) -> str:
        total = b.elementwise(lambda s, t: relu(s + t), b.matmul(x, w), b.matmul(x, v))
        return str(b.matmul(total, w))

    for d in check(build, lambda x, w, v: torch.relu(x @ w + x @ v) @ w, (3, 4), (4, 4), (4, 4)):
        assert len(d.saved) == 1


def test_a_result_is_computed_again_where_its_operand_is_there() -> None:
    """The operand is stored for its own sine: the result of relu is no second array."""

    def build(b: Builder, x: str, w: str) -> tuple[str, str]:
        y = b.matmul(x, w)
        return str(b.elementwise(relu, y)), str(b.elementwise(sympy.sin, y))

    recomputed, _ = check(build, lambda x, w: (torch.relu(x @ w), torch.sin(x @ w)), (3, 4), (4, 5))
    assert len(recomputed.saved) == 1


@pytest.mark.parametrize("dtype", [types.HALVES[0], dace.float32])
def test_a_narrow_result_is_read_only_where_it_is_not_rounded(dtype: Any) -> None:
    def derived(form: Callable[..., Any], arrays: int) -> Derivative:
        graph = Graph("narrow")
        names = [graph.add_input("x", (4,), dtype) for _ in range(arrays)]
        out = graph.add_array("out", (4,), dtype)
        graph.add_output(Builder(graph).elementwise(form, *names, out=out))
        return differentiate(graph, [out], names)

    def reads_result(derivative: Derivative) -> bool:
        return not derivative.forward_inputs_needed

    wide = dtype == dace.float32
    assert not reads_result(derived(relu, 1))  # an input costs nothing
    tiny = np.array([6e-8, -6e-8, 0.0, 1.0]), np.array([-5e-8, 7e-8, 0.0, 1.0])
    derivative = derived(lambda u, v: relu(u + v), 2)
    assert reads_result(derivative) == wide
    if wide:
        return
    (g,) = derivative.grad_outputs.values()
    feeds = {n: v.astype(np.float16) for n, v in zip(derivative.forward_inputs_needed, tiny, strict=True)}
    found = run(derivative.backward, {g: np.ones(4, np.float16), **feeds}, derivative.backward.outputs)
    expected = (feeds[derivative.forward_inputs_needed[0]].astype(np.float32) + list(feeds.values())[1]) > 0
    np.testing.assert_array_equal(next(iter(found.values())), expected.astype(np.float16))


_BOUNDS = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
_RELATION = st.sampled_from([lt, le, gt, ge])


@st.composite
def _pieces(draw: Any, depth: int = 2) -> Callable[[Any], Any]:
    """A function that passes its operand in some intervals, and gives numbers in others."""
    kind = draw(st.integers(0, 2)) if depth else draw(st.integers(0, 1))
    if kind == 0:
        return lambda x: x
    if kind == 1:
        number = draw(_BOUNDS)
        return lambda x: sympy.Float(number)
    relation, bound, yes, no = draw(_RELATION), draw(_BOUNDS), draw(_pieces(depth - 1)), draw(_pieces(depth - 1))
    return lambda x: select(relation(x, bound), yes(x), no(x))


@settings(max_examples=25)
@given(_pieces(depth=3))
def test_functions_of_pieces_have_the_gradient_of_the_piece(form: Callable[[Any], Any]) -> None:
    values = [-3.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0]
    problem = Problem(lambda b, x: b.elementwise(lambda v: form(v), x), values=[values])
    for policy in ("store", "recompute"):
        derivative = problem.derive(policy)
        if not derivative.grad_outputs:
            return
        _, found = problem.execute(derivative, {problem.graph.outputs[0]: np.ones(len(values))})
        (gradient,) = found.values()
        symbol = scalar.symbol("v", dace.float64)
        slope = scalar.differentiate(form(symbol), symbol)
        expected = np.broadcast_to(scalar.evaluate(slope, {symbol: np.array(values)}, dace.float64), len(values))
        np.testing.assert_array_equal(0.0 if gradient is None else gradient, expected)
