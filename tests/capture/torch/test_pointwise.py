"""Arithmetic, rounding, powers, selection and special functions: values, types and gradients, at the edges too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capture.torch.checking import check
from tests.capture.torch.interpreted import compile_printed

nan, inf = float("nan"), float("inf")
INTEGERS = [torch.int8, torch.int64, torch.uint8]
# sixteen numbers each, so that ATen computes all of them in vectors, whose NaN and ties differ from its scalar code
ANY = [nan, -0.0, 0.0, 1.0, -1.0, 3.0, -3.0, 0.5, -0.5, 6.0, inf, -inf, 2.75, -7.25, 0.1, -1.75]
OTHER = [2.0, 0.0, 0.0, 1.0, -1.0, nan, 3.0, -0.5, 0.5, -6.0, inf, 1.0, -2.0, 4.0, 0.1, -1.75]
FINITE = [0.1, -0.25, 0.75, 1.0, -1.0, 3.0, -3.0, 0.5, -0.5, 6.0, 2.0, -2.0, 2.75, -7.25, 8.0, -1.75]
POSITIVE = [0.125, 0.25, 0.75, 1.0, 1.5, 3.0, 2.0, 0.5, 1.25, 6.0, 4.0, 8.0, 2.75, 7.25, 0.1, 1.75]
UNIT = [0.1, -0.25, 0.75, 0.3, -0.9, 0.95, -0.5, 0.5, 0.0, -0.0, 0.6, -0.6, 0.2, -0.2, 0.01, -0.01]
WHOLE = [0, 1, 2, 3, 5, 7, 11, 100, 127, 64, 1, 2, 9, 4, 6, 8]
DIVISORS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 127]

Fn = Callable[..., Any]


def values(numbers: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


EVERYWHERE = [
    torch.abs,
    torch.relu,
    torch.exp,
    torch.expm1,
    torch.exp2,
    torch.sigmoid,
    torch.tanh,
    torch.erf,
    torch.erfc,
    torch.atan,
    torch.asinh,
    torch.sqrt,
    torch.rsqrt,
    torch.reciprocal,
    torch.square,
    torch.neg,
    torch.sign,
    torch.sgn,
    torch.floor,
    torch.ceil,
    torch.trunc,
    torch.round,
    torch.frac,
    torch.deg2rad,
    torch.rad2deg,
    torch.nan_to_num,
    torch.sinc,
    torch.positive,
    lambda x: x + 1,
    lambda x: x - 2.5,
    lambda x: 2.5 - x,
    lambda x: x * 0.0,
    lambda x: x * x,
    lambda x: x - x,
    lambda x: x / 3,
    lambda x: 3 / x,
    lambda x: torch.add(x, x, alpha=-1),
    lambda x: torch.rsub(x, 1.5, alpha=2),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x**0,
    lambda x: x**-1,
    lambda x: x.clamp(-1, 1),
    lambda x: x.clamp(min=0),
    lambda x: x.clamp(max=0.1),
    lambda x: x.clamp(1, -1),
    lambda x: torch.nan_to_num(x, 1.5, -2.0, 3.0),
    lambda x: torch.where(x > 0, x, 2.0),
    lambda x: torch.round(x, decimals=1),
    lambda x: torch.round(x, decimals=-1),
    lambda x: torch.floor(x / 0.1),
    lambda x: torch.special.entr(x),
]


@pytest.mark.share(2)
@pytest.mark.parametrize("fn", EVERYWHERE)
def test_unary_everywhere(fn: Fn) -> None:
    check(fn, values(ANY))


IN_THEIR_DOMAIN: list[tuple[Fn, list[float]]] = [
    (torch.sin, FINITE),
    (torch.cos, FINITE),
    (torch.tan, FINITE),
    (torch.sinh, FINITE),
    (torch.cosh, FINITE),
    (torch.asin, UNIT),
    (torch.acos, UNIT),
    (torch.atanh, UNIT),
    (torch.acosh, [1 + x for x in POSITIVE]),
    (torch.log, POSITIVE),
    (torch.log2, POSITIVE),
    (torch.log10, POSITIVE),
    (torch.log1p, POSITIVE),
    (lambda x: torch.floor(torch.log2(x)), POSITIVE),
    (lambda x: x**0.5, POSITIVE),
    (lambda x: x**1.5, POSITIVE),
    (lambda x: x**-0.5, POSITIVE),
    (lambda x: x**2.3, POSITIVE),
    (lambda x: 2**x, FINITE),
    (lambda x: 0.5**x, FINITE),
    (lambda x: 1**x, FINITE),
    (lambda x: 0**x, FINITE),
    (torch.logit, POSITIVE),
    (lambda x: torch.logit(x, 0.2), FINITE),
]


@pytest.mark.parametrize(("fn", "numbers"), IN_THEIR_DOMAIN)
def test_unary(fn: Fn, numbers: list[float]) -> None:
    check(fn, values(numbers))


@pytest.mark.share(2)
@pytest.mark.parametrize("fn", [torch.exp, torch.sqrt, torch.sigmoid, torch.rsqrt, torch.log1p, torch.atan, torch.erfc])
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64, torch.bool])
def test_integers_become_floats(fn: Fn, dtype: torch.dtype) -> None:
    check(fn, values([1, 2, 3, 4, 5, 9, 7, 1]).to(dtype))


BINARY = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    lambda x, y: torch.add(x, y, alpha=2.5),
    lambda x, y: torch.sub(x, y, alpha=0.5),
    lambda x, y: torch.rsub(x, y, alpha=2),
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    torch.fmod,
    torch.remainder,
    torch.floor_divide,
    torch.maximum,
    torch.minimum,
    torch.fmax,
    torch.fmin,
    torch.copysign,
    torch.heaviside,
    torch.atan2,
    torch.hypot,
    torch.logaddexp,
    torch.logaddexp2,
    torch.xlogy,
    torch.special.xlog1py,
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: torch.lerp(x, y, 0.8),
    torch.lerp,
    lambda x, y: torch.addcmul(x, x, y, value=-1),
    lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    lambda x, y: torch.where(x < y, x, y),
    lambda x, y: x.clamp(y, y + 1),
    lambda x, y: torch.clamp(x, min=y),
    lambda x, y: torch.clamp(x, max=y),
]


WITHOUT_DERIVATIVE = (torch.heaviside, torch.floor_divide)


def _with_weight(fn: Fn) -> Fn:
    return (lambda x, y: torch.lerp(x, y, y)) if fn is torch.lerp else fn


@pytest.mark.share(2)
@pytest.mark.parametrize("fn", BINARY)
def test_binary_everywhere(fn: Fn) -> None:
    check(_with_weight(fn), values(ANY), values(OTHER), grad=fn not in WITHOUT_DERIVATIVE)


@pytest.mark.share(2)
@pytest.mark.parametrize("fn", BINARY)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_binary_types(fn: Fn, dtype: torch.dtype) -> None:
    check(_with_weight(fn), values(FINITE, dtype), values(POSITIVE[::-1], dtype), grad=fn not in WITHOUT_DERIVATIVE)


@pytest.mark.parametrize("fn", [torch.pow, lambda x, y: x ** y.detach()])
def test_powers(fn: Fn) -> None:
    check(fn, values([0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.5, 9.0]), values([0.0, 2.0, -1.0, 0.0, -2.0, 0.5, 3.0, 1.0]))


@pytest.mark.parametrize("base", [-2.0, 0.0, 0.5, 1.0, 1, 3])
def test_powers_of_a_number(base: float) -> None:
    check(lambda x: base**x, values([0.0, 1.0, 2.0, -1.0, 3.0, 0.0, 4.0, -2.0]))


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "fn",
    [
        torch.add,
        torch.sub,
        torch.mul,
        torch.div,
        lambda x, y: torch.add(x, y, alpha=3),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        torch.fmod,
        torch.remainder,
        torch.floor_divide,
        torch.maximum,
        torch.minimum,
        lambda x, y: x.clamp(y, y + 1),
        lambda x, y: x // 3 + (-x) // 3 + x % 3 + (-x) % 3,
        lambda x, y: x.clamp(2, 5),
        lambda x, y: x.abs() + x.sign() - (-x),
        lambda x, y: x**2 + y**3,
        lambda x, y: y ** x.abs() + 3 ** x.abs(),
        lambda x, y: torch.where(x > y, x, y),
        lambda x, y: torch.round(x) + torch.floor(y) + torch.trunc(x) + torch.ceil(x),
        lambda x, y: x * 2.5,
        lambda x, y: torch.addcmul(x, x, y, value=2),
    ],
)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(fn: Fn, dtype: torch.dtype) -> None:
    a = torch.tensor(WHOLE).to(dtype)
    check(fn, -a if dtype.is_signed else a, torch.tensor(DIVISORS).to(dtype), pipeline=compile_printed)


@pytest.mark.parametrize("fn", [torch.add, torch.mul, torch.maximum, torch.minimum, lambda x, y: torch.where(x, x, y)])
def test_booleans(fn: Fn) -> None:
    check(fn, torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False]))


MIXED = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.share(3)
@pytest.mark.parametrize("first", MIXED)
@pytest.mark.parametrize("second", MIXED)
def test_promotion(first: torch.dtype, second: torch.dtype) -> None:
    x, y = torch.tensor([1, 0, 1, 3]).to(first), torch.tensor([2, 1, 1, 5]).to(second)
    check(lambda x, y: (x + y, x * y, x / y, torch.maximum(x, y), x < y, x == y, x + y[1], x[0] * y, x > y[1]), x, y)


@pytest.mark.parametrize("shapes", [((), ()), ((3, 1), (1, 4)), ((0, 3), (3,)), ((), (2, 3)), ((1,), ())])
def test_shapes(shapes: Any) -> None:
    x, y = (torch.rand(s, generator=torch.Generator().manual_seed(1)) for s in shapes)
    check(lambda x, y: (x + y, x / (y + 1), torch.atan2(x, y), torch.maximum(x, y), x.clamp(0.2, 0.6), x**2.5), x, y)


def test_dynamic_sizes() -> None:
    check(
        lambda x, y: (x * x.shape[0] + y, torch.lerp(x, y, 0.25), torch.logaddexp(x, y), x / x.shape[1]),
        torch.rand(3, 4),
        torch.rand(4),
        dynamic=True,
    )


def test_numbers_keep_their_bits() -> None:
    check(
        lambda x: (x * 0.1 + 1 / 3, x**0.1, x.clamp(0.1, 0.7), torch.lerp(x, -x, 0.1)), values(POSITIVE, torch.float64)
    )


def test_constants_share_ties() -> None:
    half = torch.tensor(0.5)
    check(
        lambda x: (torch.maximum(x, half), torch.minimum(x, half), torch.fmax(x, half)), values([0.5, 0.25, 1.0, 0.5])
    )


def test_a_number_over_itself() -> None:
    check(lambda x: x / x, values(ANY), grad=False)


def test_quotients_are_rounded_once() -> None:
    """As a product with 1 / 49, 49 / 49 would be less than 1."""
    numbers = torch.arange(1, 101, dtype=torch.float64)
    check(lambda x: [torch.floor(x * n / n) for n in (3, 10, 49, 0.1, 7.5, 64)], numbers, grad=False)
