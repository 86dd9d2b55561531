"""Gradients and results at NaN, infinity, zero and at the ends of the range are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted

NAN, INF = float("nan"), float("inf")

A = torch.tensor([NAN, 1.0, -INF, INF, 3.0, -INF, 0.0])
B = torch.tensor([1.0, NAN, INF, INF, -2.0, -INF, -0.0])

LOSSES: dict[str, Callable[..., Any]] = {
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    "smooth_l1_beta": lambda a, b: F.smooth_l1_loss(a, b, reduction="sum", beta=2.5),
    "l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none", beta=0.0),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "huber_mean": lambda a, b: F.huber_loss(a, b, delta=0.5),
    "broadcast": lambda a, b: F.smooth_l1_loss(a[:, None], b, reduction="none"),
    "of itself": lambda a, b: F.huber_loss(a, a, reduction="none"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    check(LOSSES[name], A, B)
    check(LOSSES[name], A[[1, 4, 6]], B[[4, 0, 6]])


@pytest.mark.parametrize("rows", [[[2.0, 0, NAN, 3, 0, 5]], [[1.0, 2, INF, 0, 7]], [[2.0, NAN, 0.5]], [[0.0, 0, 1]]])
def test_running_products(rows: list[list[float]]) -> None:
    """A factor of 0 makes the slopes behind it 0."""
    check(lambda x: x.cumprod(1), torch.tensor(rows))


@pytest.mark.parametrize("row", [[1.0, NAN, 0.0], [INF, 2.0, 0.0], [2.0, NAN, 3.0], [0.0, 2.0, 0.0], [2.0, 0.0, -3.0]])
def test_products(row: list[float]) -> None:
    """The slope by a factor beside NaN and zero is NaN, not 0."""
    check(lambda x: x.prod(1), torch.tensor([row]))
    check(lambda x: x.prod(), torch.tensor([row]))


@pytest.mark.parametrize("size", [1e-25, 1e25, 1.0])
def test_the_slope_by_a_divisor_keeps_to_the_range(size: float) -> None:
    x = torch.tensor([size, 2 * size, -size])
    check(lambda a, b: a / b, x, 3 * x)


def test_softmax_of_hidden_rows() -> None:
    scores = torch.randn(3, 4).masked_fill(torch.tensor([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).bool(), -INF)
    check(lambda x: torch.ops.aten._safe_softmax(x, -1), scores)
    check(lambda x: torch.ops.aten._safe_softmax(x, 0), scores)
    check(lambda x: torch.ops.aten._safe_softmax(x, 0), torch.tensor(-INF))


ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "threshold": lambda x: F.threshold(x, 0.3, 20.1),
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.7),
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "clamp": lambda x: x.clamp(-0.3, 0.7),
    "softplus": lambda x: F.softplus(x, 1.3, 2.3),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_bounds_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """Whether a bound is rounded to the type of the elements is seen at the numbers next to it."""
    x = torch.tensor([0.3, -0.3, 0.7, 1.0, 0.0, 1e-6, 2.3 / 1.3], dtype=dtype)
    near = torch.stack([x.view(torch.int16) + k for k in range(-2, 3)]).view(dtype).flatten()
    check(ROUNDED[name], near[near.isfinite()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logit_whose_upper_bound_rounds_to_one(dtype: torch.dtype) -> None:
    """It is infinite there in eager PyTorch, not in float64."""
    x = torch.tensor([0.0, 1.0, 0.5], dtype=dtype)
    backend = make_backend(compile_interpreted)
    torch._dynamo.reset()
    found = torch._dynamo.optimize(backend, nopython=True)(lambda x: torch.logit(x, 1e-6))(x)
    torch.testing.assert_close(found, torch.logit(x, 1e-6))


def test_the_next_number_in_bfloat16() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    check(lambda a: torch.nextafter(a.detach(), a.detach() * 2), x, native=False)


def test_a_constant_of_aten_that_is_a_float() -> None:
    check(F.hardsigmoid, torch.tensor([0.3, -3.0, 3.0, NAN, 5.0], dtype=torch.float64))


@pytest.mark.parametrize("kind", [torch.bool, torch.float32], ids=str)
def test_attention_to_a_hidden_key_that_is_nan(kind: torch.dtype) -> None:
    """A mask is added, so that what it hides is NaN still."""
    q, k, v = (torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    k[:, 0, 1] = NAN
    hidden = torch.tensor([[True, False, True]] * 2 + [[False] * 3])
    mask = hidden if kind is torch.bool else torch.zeros(3, 3).masked_fill(~hidden, -INF)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), q, k, v)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask)[:, 1:], q, torch.nan_to_num(k), v)


def test_the_zero_of_hardswish_is_negative() -> None:
    backend = make_backend(compile_interpreted)
    torch._dynamo.reset()
    x = torch.tensor([-3.0, -4.0, -INF, 0.0], requires_grad=True)
    found = torch._dynamo.optimize(backend, nopython=True)(F.hardswish)(x)
    torch.testing.assert_close(1 / found, 1 / F.hardswish(x), equal_nan=True)
    check(F.hardswish, x.detach())


def test_the_mean_of_nothing_but_nan() -> None:
    check(lambda x: (x.nanmean(1), x.nansum(0)), torch.tensor([[NAN, NAN], [1.0, NAN], [2.0, 3.0]]))


CANCELLING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "difference": lambda x: x * 2 - x * 2,
    "of one and a half": lambda x: (x * 3).sin() - 2 * (x * 3).sin(),
    "quotient": lambda x: (x + 1) / (x + 1),
    "of choices": lambda x: torch.where(x > 0, x, x) / x,
    "of powers": lambda x: x.exp() * x.exp() / x.exp(),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_equal_operands_are_not_taken_from_one_another(name: str) -> None:
    """Two nodes that compute the same become one: what both sides then read is still NaN for infinities and NaN."""

    def optimized(fingerprint: str, load: Callable[[], Any], *_: Any, **__: Any) -> Any:
        return compile_interpreted(fingerprint, load, "cpu")

    check(CANCELLING[name], torch.tensor([NAN, INF, -INF, 0.0, -1.0, 2.0]), pipeline=optimized)


LARGE = torch.tensor([1e30, 1e-30, -1e20, 3e38, -1e-38, 2.0])

QUOTIENTS: dict[str, Callable[..., Any]] = {
    "copysign": lambda a: torch.copysign(a, a.detach().flip(0)),
    "prod": lambda a: a[[0, 5]].prod() * torch.ones(6),
    "addcdiv": lambda a: torch.addcdiv(a.detach().flip(0), a.detach() * 0.5, a),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("scale", [1e35, 1e20, 1e-20])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_gradient_times_a_quotient_stays_in_range(name: str, scale: float) -> None:
    """The quotient is computed first: times the dividend a gradient may leave the range of float32."""

    def gradient(fn: Callable[..., Any], dtype: torch.dtype) -> torch.Tensor:
        a = LARGE.to(dtype).requires_grad_()
        result = fn(a)
        return torch.autograd.grad(result, a, torch.full_like(result, scale))[0]

    compiled = torch.compile(QUOTIENTS[name], backend=make_backend(compile_interpreted))
    exact = gradient(QUOTIENTS[name], torch.float64)
    torch.testing.assert_close(gradient(compiled, torch.float32), exact.float(), rtol=1e-5, atol=1e-44)


def test_logit_at_negative_zero() -> None:
    x, slope = torch.tensor([0.0, -0.0, 1.0, 0.5]), torch.tensor([-1.0, -2.0, 3.0, 4.0])
    check(lambda x: torch.logit(x) * slope, x)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_infinite_gradient_of_a_number_that_is_replaced() -> None:
    x = torch.tensor([1.0, -INF, INF, 2.0, float("nan")], dtype=torch.float64)
    check(lambda x: x.nan_to_num(0, 1, -1) * torch.tensor([1.0, INF, 3.0, INF, INF]).double(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_bounds_that_are_negative_zero(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.clamp(-1, -0.0), x.clamp(min=-0.0), F.threshold(x, -1, -0.0), F.hardtanh(x, -1, -0.0)]

    x = torch.tensor([2.0, -2.0, 0.5, -0.5], dtype=dtype)
    backend = check(fn, x)
    (piece,) = backend.graphs
    signs = [t.signbit() for t in piece(x)]
    assert [s.tolist() for s in signs] == [t.signbit().tolist() for t in fn(x)]
