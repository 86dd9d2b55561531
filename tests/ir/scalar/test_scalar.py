"""Types, evaluation and derivatives of scalar expressions."""

from __future__ import annotations

import copy
import pickle

import dace
import numpy as np
import pytest
import sympy
import torch

from daceopt.errors import Unsupported
from daceopt.ir.scalar import philox, scalar, types

F, D, I8, I64, B = dace.float32, dace.float64, dace.int8, dace.int64, dace.bool_
x, y = scalar.symbol("x", F), scalar.symbol("y", F)
n, c = scalar.symbol("n", I64), scalar.symbol("c", B)
KNOWN = {x: F, y: F, n: I64, c: B}


@pytest.mark.parametrize(
    ("expr", "dtype"),
    [
        (x + 1, F),
        (x / 3, F),
        (n * 2, I64),
        (n / 2, F),
        (x * n, F),
        (scalar.gt(x, 0), B),
        (scalar.select(c, x, 0), F),
        (scalar.select(c, n, 0), I64),
        (scalar.select(c, scalar.logical_not(c), 1), B),
        (scalar.cast(x, D) * y, D),
        (scalar.cast(x, I8), I8),
        (-scalar.infinity(), F),
        (sympy.exp(n), F),
        (scalar.uniform(n, 0, n), F),
        (scalar.floor(n), I64),
        (n**2, I64),
        (x**2.5, F),
        (c * x, F),
        (sympy.pi * x, F),
        (sympy.Integer(3), I64),
    ],
)
def test_dtype(expr, dtype) -> None:
    assert scalar.dtype_of(expr, KNOWN) == dtype


@pytest.mark.parametrize(
    "expr", [sympy.Max(x, 0), sympy.Heaviside(x), sympy.Piecewise((x, x > 0), (0, True)), sympy.floor(x), sympy.zeta(x)]
)
def test_foreign_functions_are_refused(expr) -> None:
    with pytest.raises(Unsupported):
        scalar.dtype_of(expr, KNOWN)


def test_comparisons_and_infinities_become_our_own() -> None:
    assert scalar.select(x > 0, True, -sympy.oo) == scalar.select(scalar.gt(x, 0), 1, -scalar.infinity())
    assert scalar.maximum(x, float("inf")) == scalar.maximum(x, scalar.infinity())


def test_numbers_are_not_evaluated() -> None:
    assert scalar.maximum(0.5, 0.25).has(scalar.maximum)
    assert scalar.sigmoid(sympy.Float(0.5)).has(scalar.sigmoid)


@pytest.mark.parametrize("value", [1.0, -1.0, 0.0, 0.1, 2.0**60, 1e300, -7.5, np.inf, -np.inf, np.nan])
def test_numbers_keep_their_value(value: float) -> None:
    assert np.array_equal(scalar.evaluate(scalar.number(value), {}, D), value, equal_nan=True)


def test_a_product_with_one_is_none() -> None:
    assert scalar.number(1.0) * x == x and scalar.number(-1.0) * x == -x


def test_expressions_copy_and_pickle() -> None:
    expr = scalar.maximum(x, 0) * scalar.cast(y, D) + scalar.load(scalar.symbol("a", F), n)
    assert pickle.loads(pickle.dumps(expr)) == expr == copy.deepcopy(expr)


def _torch_gradients(function, *values: np.ndarray) -> list[np.ndarray]:
    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
    function(*leaves).sum().backward()
    return [leaf.grad.numpy() for leaf in leaves]


_POINTS = np.array([-2.5, -1.0, -0.3, 0.0, 0.4, 1.0, 3.0])
_UNARY = [
    (lambda v: scalar.maximum(v, 0), torch.relu),
    (abs, torch.abs),
    (scalar.sigmoid, torch.sigmoid),
    (scalar.softplus, torch.nn.functional.softplus),
    (lambda v: v * sympy.tanh(scalar.softplus(v)), torch.nn.functional.mish),
    (lambda v: v / 2 * (1 + sympy.erf(v / sympy.sqrt(2))), torch.nn.functional.gelu),
    (lambda v: scalar.select(scalar.gt(v, 0), v, sympy.exp(v) - 1), torch.nn.functional.elu),
    (lambda v: v**3, lambda v: v**3),
    (lambda v: sympy.sqrt(v * v + 1), lambda v: (v * v + 1).sqrt()),
    (lambda v: abs(sympy.log(v * v + 2)), lambda v: (v * v + 2).log().abs()),
    (lambda v: scalar.fmod(v, 0.7), lambda v: torch.fmod(v, 0.7)),
    (lambda v: scalar.floor(v) * v, lambda v: v.floor() * v),
    (lambda v: scalar.cast(scalar.cast(v, D), F) * v, lambda v: v * v),
    (lambda v: scalar.cast(v, I64) * v, lambda v: v.long() * v),
    (lambda v: 2**v, lambda v: 2**v),
    (scalar.log1p, lambda v: torch.log1p(v)),
]


@pytest.mark.parametrize(("ours", "theirs"), _UNARY)
def test_derivative_of_one_argument(ours, theirs) -> None:
    points = _POINTS[_POINTS > -1] if ours is scalar.log1p else _POINTS
    found = scalar.evaluate(scalar.differentiate(ours(x), x), {x: points}, D)
    np.testing.assert_allclose(np.broadcast_to(found, points.shape), _torch_gradients(theirs, points)[0], atol=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (scalar.maximum, torch.maximum),
        (scalar.minimum, torch.minimum),
        (lambda a, b: a**b, torch.pow),
        (lambda a, b: a / b, torch.div),
        (lambda a, b: scalar.select(scalar.lt(a, b), a * b, a), lambda a, b: torch.where(a < b, a * b, a)),
    ],
)
def test_derivative_of_two_arguments(ours, theirs) -> None:
    a, b = np.array([0.5, 1.0, 2.0, 3.0, 0.0]), np.array([0.5, 2.0, 1.5, 3.0, 2.0])
    expr = ours(x, y)
    for symbol, expected in zip((x, y), _torch_gradients(theirs, a, b), strict=True):
        found = scalar.evaluate(scalar.differentiate(expr, symbol), {x: a, y: b}, D)
        np.testing.assert_allclose(np.broadcast_to(found, a.shape), expected, atol=1e-12)


def test_reading_an_array_at_an_index_has_no_derivative() -> None:
    array = scalar.symbol("a", F)
    with pytest.raises(Unsupported, match="gradient rule"):
        scalar.differentiate(scalar.load(array, n), array)


def test_integer_arithmetic() -> None:
    values = np.arange(-5, 6)
    np.testing.assert_array_equal(scalar.evaluate(scalar.idiv(n, -2), {n: values}), np.trunc(values / -2).astype(int))
    np.testing.assert_array_equal(scalar.evaluate(scalar.pymod(n, 3), {n: values}), values % 3)
    np.testing.assert_array_equal(scalar.evaluate(scalar.idiv(n, 0), {n: values}), 0 * values)


def test_uniform_is_even_and_keyed() -> None:
    sample = philox.uniform(3, 1, np.arange(1 << 16))
    assert sample.dtype == np.float32
    assert sample.min() >= 0
    assert sample.max() < 1
    histogram = np.histogram(sample, 64, (0, 1))[0]
    assert abs(histogram - 1024).max() < 200
    assert abs(np.corrcoef(sample, philox.uniform(4, 1, np.arange(1 << 16)))[0, 1]) < 0.02
    assert not np.array_equal(sample, philox.uniform(3, 2, np.arange(1 << 16)))
    assert philox.uniform(3, 1, np.array([1 << 40]))[0] != sample[0]


@pytest.mark.parametrize("dtype", types.DTYPES)
def test_type_names_go_both_ways(dtype) -> None:
    assert types.from_numpy(types.to_numpy(dtype)) == dtype
    assert types.from_torch(types.to_torch(dtype)) == dtype
    assert types.from_onnx(types.to_onnx(dtype)) == dtype
    assert types.from_name(types.name_of(dtype)) == dtype


def test_unknown_types_are_refused() -> None:
    for convert, value in ((types.from_numpy, np.complex64), (types.from_torch, torch.complex64), (types.from_onnx, 8)):
        with pytest.raises(Unsupported, match="expected one of"):
            convert(value)


def test_numbers_inside_of_a_choice_decide_its_type() -> None:
    x = scalar.symbol("x", dace.float32)
    bits = scalar.select(scalar.lt(x, 0), scalar.eq(x, 1), scalar.select(scalar.gt(x, 2), 1, 0))
    assert scalar.dtype_of(bits, {x: dace.float32}) == dace.bool_
    numbers = scalar.select(scalar.lt(x, 0), scalar.eq(x, 1), scalar.select(scalar.gt(x, 2), 2, 0))
    assert scalar.dtype_of(numbers, {x: dace.float32}) == dace.int64
    assert scalar.evaluate(numbers, {x: np.float32([3, 1, -1])}).tolist() == [2, 0, 0]


def test_functions_of_numbers_are_not_evaluated_inside_of_others() -> None:
    least = scalar.minimum(sympy.Float(0.5), scalar.symbol("x", F)).subs(scalar.symbol("x", F), 0.25)
    assert sympy.exp(2 * least).has(scalar.minimum)
