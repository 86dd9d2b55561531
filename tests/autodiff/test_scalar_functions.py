"""The derivative of every scalar function against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch

from daceopt.ir.scalar import scalar
from tests.autodiff.checking import check

ANY = np.array([-2.5, -1.0, -0.3, 0.0, 0.4, 1.0, 3.0])
POSITIVE = np.array([0.1, 0.7, 1.0, 2.0, 9.0])
UNIT = np.array([-0.9, -0.5, 0.1, 0.6])

UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], np.ndarray]] = {
    "sigmoid": (scalar.sigmoid, torch.sigmoid, ANY),
    "softplus": (scalar.softplus, torch.nn.functional.softplus, ANY),
    "log1p": (scalar.log1p, torch.log1p, POSITIVE),
    "expm1": (scalar.expm1, torch.expm1, ANY),
    "exp2": (scalar.exp2, torch.exp2, ANY),
    "exp_rounded": (scalar.exp_rounded, torch.exp, ANY),
    "exp_weight": (scalar.exp_weight, torch.exp, ANY),
    "log2": (scalar.log2, torch.log2, POSITIVE),
    "log10": (scalar.log10, torch.log10, POSITIVE),
    "erfc": (scalar.erfc, torch.erfc, ANY),
    "absolute": (scalar.absolute, torch.abs, ANY),
    "Abs": (sympy.Abs, torch.abs, ANY),
    "floor": (scalar.floor, torch.floor, ANY),
    "ceil": (scalar.ceil, torch.ceil, ANY),
    "trunc": (scalar.trunc, torch.trunc, ANY),
    "round_even": (scalar.round_even, torch.round, ANY),
    "sign": (scalar.sign, torch.sign, ANY),
    "exp": (sympy.exp, torch.exp, ANY),
    "log": (sympy.log, torch.log, POSITIVE),
    "sqrt": (sympy.sqrt, torch.sqrt, POSITIVE),
    "sin": (sympy.sin, torch.sin, ANY),
    "cos": (sympy.cos, torch.cos, ANY),
    "tan": (sympy.tan, torch.tan, ANY),
    "sinh": (sympy.sinh, torch.sinh, ANY),
    "cosh": (sympy.cosh, torch.cosh, ANY),
    "tanh": (sympy.tanh, torch.tanh, ANY),
    "asin": (sympy.asin, torch.asin, UNIT),
    "acos": (sympy.acos, torch.acos, UNIT),
    "atan": (sympy.atan, torch.atan, ANY),
    "asinh": (sympy.asinh, torch.asinh, ANY),
    "acosh": (sympy.acosh, torch.acosh, POSITIVE + 1),
    "atanh": (sympy.atanh, torch.atanh, UNIT),
    "erf": (sympy.erf, torch.erf, ANY),
    "square": (lambda x: x**2, lambda x: x**2, ANY),
    "reciprocal": (lambda x: 1 / x, torch.reciprocal, POSITIVE),
    "relu": (lambda x: scalar.maximum(x, 0), torch.relu, ANY),
    "clip": (
        lambda x: scalar.minimum(scalar.maximum(x, -1), 1),
        lambda x: x.clamp(-1, 1),
        np.array([-2.0, -0.5, 0.5, 3.0]),
    ),
    "apart": (lambda x: x**3 - scalar.apart(x), lambda x: x**3 - x, ANY),
    "narrowed": (
        lambda x: scalar.cast(scalar.cast(x, dace.float32), dace.float64) * x,
        lambda x: x * x,  # the values are exact in float32
        np.array([0.5, 1.25, -2.0]),
    ),
    "through_integer": (
        lambda x: scalar.cast(scalar.cast(x, dace.int64), dace.float64) * x,
        lambda x: x.long().double() * x,
        ANY,
    ),
    "where": (
        lambda x: scalar.select(scalar.gt(x, 0), sympy.exp(x), 0.1 * x),
        lambda x: torch.where(x > 0, x.exp(), 0.1 * x),
        ANY,
    ),
    "quotient_through_integer": (
        lambda x: scalar.cast(scalar.cast(3 / x, dace.int32), dace.float64),
        lambda x: (3 / x).trunc(),
        POSITIVE,
    ),
    "is_finite": (
        lambda x: scalar.select(scalar.isnan(x), 0, x) * scalar.select(scalar.isinf(x), 0, 1),
        lambda x: x * 1,
        ANY,
    ),
}
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any], np.ndarray, np.ndarray]] = {
    "maximum": (scalar.maximum, torch.maximum, ANY, np.array([-1.0, -1.0, 2.0, 0.0, 0.1, 1.0, 1.0])),
    "minimum": (scalar.minimum, torch.minimum, ANY, np.array([-1.0, -1.0, 2.0, 0.0, 0.1, 1.0, 1.0])),
    "power": (scalar.power, torch.pow, POSITIVE, np.array([-1.5, 0.0, 2.0, 3.0, 0.5])),
    "Pow": (lambda x, y: x**y, torch.pow, POSITIVE, np.array([-1.5, 0.0, 2.0, 3.0, 0.5])),
    "fmod": (scalar.fmod, torch.fmod, np.array([-2.5, 3.2, 7.1]), np.array([1.5, -2.0, 3.0])),
    "pymod": (scalar.pymod, torch.remainder, np.array([-2.5, 3.2, 7.1]), np.array([1.5, -2.0, 3.0])),
    "atan2": (scalar.atan2, torch.atan2, ANY, ANY[::-1].copy()),
    "hypot": (scalar.hypot, torch.hypot, ANY, ANY[::-1].copy() + 0.1),
    "copysign": (scalar.copysign, torch.copysign, ANY, ANY[::-1].copy()),
    "divide": (scalar.divide, torch.div, np.array([-2.5, 3.2, 7.1]), np.array([1.5, -2.0, 3.0])),
    "quotient": (lambda x, y: x / y, torch.div, np.array([-2.5, 3.2, 7.1]), np.array([1.5, -2.0, 3.0])),
    "difference": (lambda x, y: x - 3 * y, lambda x, y: x - 3 * y, UNIT, UNIT * 2),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    ours, theirs, values = UNARY[name]
    check(lambda b, x: b.elementwise(ours, x), theirs, values=[values])


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    ours, theirs, a, c = BINARY[name]
    check(lambda b, x, y: b.elementwise(ours, x, y), theirs, values=[a, c])


def test_every_differentiable_row_of_the_table_is_covered() -> None:
    rows = {n for n, r in scalar.FUNCTIONS.items() if r.derivative and r.rule in ("same", "float")}
    without_effect = {"idiv"}
    assert rows - without_effect <= set(UNARY) | set(BINARY)


def test_a_branch_not_taken_gives_zero_even_where_it_overflows() -> None:
    check(
        lambda b, x: b.elementwise(lambda v: scalar.select(scalar.lt(v, 100), sympy.exp(scalar.minimum(v, 100)), v), x),
        lambda x: torch.where(x < 100, x.clamp(max=100).exp(), x),
        values=[[1.0, 1000.0]],
    )
