"""Random numbers: functions of the seed of the call, the node and the element, so that gradients see the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import sympy

from daceopt.capture.torch.calls import Number, NumberArray, Promise
from daceopt.capture.torch.elements import operand
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import checks, scalar, types
from daceopt.ir.scalar.dims import Dim, Shape
from daceopt.ir.scalar.types import DType
from daceopt.ops.families.random import Draw, draws, linear_index, standard_normal

_DOUBLE, _INT64, _BOOL = (types.from_name(n) for n in ("float64", "int64", "bool"))
_STEPS = {"bfloat16": 2**8, "float16": 2**11}  # so many numbers below 1 are drawn, since more would round to 1


def generate(
    t: Translation,
    fn: Callable[..., sympy.Expr],
    *arrays: str,
    shape: Shape | None = None,
    dtype: DType | None = None,
    wide: object = None,
) -> str:
    """``fn(draw, *elements of arrays)`` at each element of ``shape``, as ``dtype`` (default: the promised ones).

    No gradient passes to ``arrays``. ``wide``: draw 48 bits instead of 24; by default where the result is a float64.
    """
    shape = t.shape if shape is None else shape
    out = t.graph.add_array(t.label, shape, t.dtype if dtype is None else dtype)
    final = types.compute_type(t.dtype_of(out))
    number, wide = t.stream(), final == _DOUBLE if wide is None else wide
    reads: dict[str, Any] = {f"in{k}": (_constant(t, a, shape), lambda *i: i) for k, a in enumerate(arrays)}
    reads["seed"] = (t.graph.seed(), lambda *i: (0,))

    def value(i: tuple[sympy.Symbol, ...], seed: sympy.Expr, **operands: sympy.Expr) -> sympy.Expr:
        draw = draws(seed, number, linear_index(i, shape), bool(wide))
        return scalar.cast(fn(draw, *operands.values()), final)

    t.b.map(shape, reads, {"out": (out, lambda *i: i)}, value)
    return out


def _constant(t: Translation, name: str, shape: Shape) -> str:
    """``name`` of that shape, without a gradient."""
    if not types.is_float(t.dtype_of(name)):
        return t.expand(name, shape)
    promise = Promise(t.shape_of(name), t.dtype_of(name))
    return t.expand(t.operator("StopGradient", name, domain="daceopt", results=[promise]), shape)


def _refuse_generator(options: dict[str, Any]) -> None:
    if options.get("generator") is not None:
        raise Unsupported("a generator of the caller's own; random numbers follow PyTorch's global one")


def _refuse_unless(holds: bool, what: str) -> None:
    """Parameters for which ATen raises an error are left to it."""
    if not holds:
        raise Unsupported(what)


def _number(value: object) -> sympy.Expr:
    if not isinstance(value, (bool, int, float)):
        raise Unsupported(f"the parameter {value} of a distribution; expected a number")
    return sympy.Integer(int(value)) if float(value).is_integer() else sympy.Float(value, 17)


# -------------------------------------------------------------------- uniform numbers


def _uniform(t: Translation, low: Number, high: Number) -> str:
    steps = _STEPS.get(types.name_of(t.dtype))

    def fn(draw: Draw) -> sympy.Expr:
        u = draw(0) if steps is None else scalar.floor(draw(0) * steps) * sympy.Rational(1, steps)
        return u * (high - low) + low

    return generate(t, fn)


@translates("rand", "rand_like", "rand.generator")
def rand(t: Translation, **options: object) -> str:
    _refuse_generator(options)
    return _uniform(t, 0, 1)


@translates("uniform")
def uniform(t: Translation, self: str, **options: Any) -> str:
    _refuse_generator(options)
    low, high = options["from"], options["to"]
    _refuse_unless(not (low > high), f"uniform numbers from {low} to {high}")
    return _uniform(t, _number(low), _number(high))


def _integers(t: Translation, low: Dim, high: Dim) -> str:
    if not all(isinstance(v, int) for v in (low, high)) or high - low > 2**48:
        raise Unsupported(f"random integers from {low} to {high}; expected fewer than 2**48")
    return generate(t, lambda draw: scalar.cast(scalar.floor(draw(0) * (high - low)), _INT64) + low, wide=True)


@translates("randint", "randint.low", "randint_like", "randint_like.low_dtype", "randint.generator")
def randint(t: Translation, high: Dim, low: Dim = 0, **options: object) -> str:
    _refuse_generator(options)
    return _integers(t, low, high)


@translates("random.from", "random.to")
def random(t: Translation, self: str, **options: object) -> str:
    _refuse_generator(options)
    if options["to"] is None:
        raise Unsupported("random integers without a bound")
    return _integers(t, options.get("from", 0), options["to"])


@translates("randperm", "randperm.generator")
def randperm(t: Translation, n: Dim, **options: object) -> str:
    """The order in which random keys are sorted."""
    _refuse_generator(options)
    if not isinstance(n, int):
        raise Unsupported(f"a permutation of {n}; expected a number known when compiling")
    keys = generate(t, lambda draw: draw(0), dtype=_DOUBLE)
    return t.cast(_largest(t, keys, n), t.dtype)


def _largest(t: Translation, keys: str, count: int) -> str:
    """Positions of the largest keys along the last axis."""
    shape = (*t.shape_of(keys)[:-1], count)
    results = [Promise(shape, t.dtype_of(keys)), Promise(shape, _INT64)]
    return t.operators("TopK", keys, t.integers([count]), results=results, axis=-1)[1]


# -------------------------------------------------------------------- other distributions


@translates("randn", "randn_like", "randn.generator")
def randn(t: Translation, **options: object) -> str:
    _refuse_generator(options)
    return generate(t, standard_normal)


@translates(
    "normal_functional", "normal.float_float", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor"
)
def normal(t: Translation, mean: str | float, std: str | float, **options: object) -> str:
    _refuse_generator(options)
    _refuse_unless(isinstance(std, str) or std >= 0, f"a standard deviation of {std}")
    tensors = [v for v in (mean, std) if isinstance(v, str)]
    numbers = [None if isinstance(v, str) else _number(v) for v in (mean, std)]

    def fn(draw: Draw, *operands: object) -> sympy.Expr:
        rest = iter(operands)
        m, s = (next(rest) if v is None else v for v in numbers)
        s = scalar.checked(scalar.ge(s, 0), s, checks.DEVIATION) if numbers[1] is None else s
        return standard_normal(draw) * s + m

    return generate(t, fn, *tensors)


def _distribution(name: str, fn: Callable[..., sympy.Expr], *parameters: str, limit: float = math.inf) -> None:
    """The last of the parameters has to lie between 0 and ``limit``."""

    @translates(name)
    def rule(t: Translation, self: str, **options: object) -> str:
        _refuse_generator(options)
        values = [_number(options[p]) for p in parameters]
        _refuse_unless(0 < values[-1] < limit, f"{parameters[-1]} of {values[-1]}")
        return generate(t, lambda draw: fn(draw, *values))


def _exponential(draw: Draw) -> sympy.Expr:
    return -sympy.log(1 - draw(0))


_distribution("exponential", lambda draw, rate: _exponential(draw) / rate, "lambd")
_distribution("log_normal", lambda draw, mean, std: sympy.exp(standard_normal(draw) * std + mean), "mean", "std")
_distribution(
    "cauchy",
    lambda draw, median, scale: median + scale * sympy.tan(sympy.Float(math.pi, 17) * (draw(0) - sympy.Rational(1, 2))),
    "median",
    "sigma",
)
_distribution("geometric", lambda draw, p: scalar.floor(sympy.log(1 - draw(0)) / scalar.log1p(-p)) + 1, "p", limit=1)


# -------------------------------------------------------------------- yes or no, and choices


@translates("bernoulli")
def bernoulli(t: Translation, self: str, **options: object) -> str:
    """1 with the probability given."""
    _refuse_generator(options)
    wide = t.dtype_of(self) == _DOUBLE
    return generate(t, lambda draw, p: scalar.select(scalar.lt(draw(0), probability(p)), 1, 0), self, wide=wide)


def probability(p: object) -> sympy.Expr:
    """``p``, which is an error outside of [0, 1]."""
    return scalar.checked(scalar.logical_and(scalar.ge(p, 0), scalar.le(p, 1)), p, checks.PROBABILITY)


@translates("bernoulli.p", "bernoulli.Tensor")
def bernoulli_like(t: Translation, self: str, p: str | float, **options: object) -> str:
    """As many as ``self`` has."""
    if isinstance(p, str):
        return bernoulli(t, p, **options)
    _refuse_generator(options)
    _refuse_unless(0 <= p <= 1, f"a probability of {p}")
    limit = _number(p)
    return generate(t, lambda draw: scalar.select(scalar.lt(draw(0), limit), 1, 0))


def _weights(t: Translation, name: str, dtype: DType) -> str:
    """Weights to draw from, in ``dtype``; rows of them for which ATen raises an error raise one."""
    weights = t.cast(name, dtype)
    total = t.b.reduce("sum", None, weights, axes=(-1,), keepdims=True)

    def element(w: sympy.Expr, s: sympy.Expr) -> sympy.Expr:
        finite = scalar.logical_and(scalar.ge(w, 0), scalar.lt(w, scalar.infinity()))
        return scalar.checked(scalar.logical_and(finite, scalar.gt(s, 0)), w, checks.WEIGHT)

    return str(t.b.elementwise(element, weights, total, dtype=dtype, label="weights"))


@translates("multinomial")
def multinomial(t: Translation, self: str, num_samples: int, replacement: bool, **options: object) -> str:
    """Without replacement: whose exponential waiting times, slowed by the weights, are the shortest."""
    _refuse_generator(options)
    if not isinstance(num_samples, int):
        raise Unsupported(f"{num_samples} samples; expected a number known when compiling")
    wide = types.compute_type(t.dtype_of(self))
    weights = _weights(t, self, wide)
    if not replacement or num_samples == 1:
        least = sympy.Rational(1, 2**26)
        shape = t.shape_of(weights)
        scores = generate(t, lambda draw, p: p / -sympy.log(draw(0) + least), weights, shape=shape, dtype=wide)
        return _largest(t, scores, num_samples)
    rows = t.reshape(weights, (1, *t.shape_of(weights))) if len(t.shape_of(weights)) == 1 else weights
    logarithms = t.operator("Log", rows, results=[Promise(t.shape_of(rows), wide)])
    results = [Promise((t.shape_of(rows)[0], num_samples), _INT64)]
    drawn = t.operator("Multinomial", logarithms, results=results, dtype=types.to_onnx(_INT64), sample_size=num_samples)
    return t.reshape(drawn, t.shape)


# -------------------------------------------------------------------- layers


def ratio_of(t: Translation, p: float | NumberArray) -> str:
    """The probability that an element is dropped, as an operand."""
    return (
        t.array(p, types.compute_type(t.dtype))
        if isinstance(p, NumberArray)
        else t.b.constant(np.asarray(p, np.float64))
    )


def _dropout(t: Translation, x: str, p: float, results: list[Promise]) -> tuple[str, ...]:
    ratio, training = ratio_of(t, p), t.b.constant(np.asarray(True))
    return t.operators("Dropout", operand(t, x), ratio, training, results=results)


@translates("dropout")
def dropout(t: Translation, input: str, p: float, train: bool) -> str:
    if not train or p == 0:
        return input
    return _dropout(t, input, p, list(t.promised))[0]


@translates("native_dropout")
def native_dropout(t: Translation, input: str, p: float, train: bool | None) -> tuple[str, ...]:
    """With the mask of what is kept."""
    if train is False or p == 0:
        return input, t.expand(t.b.constant(np.asarray(True)), t.shape)
    return _dropout(t, input, p, list(t.promised))


@translates("rrelu_with_noise_functional")
def rrelu_with_noise(
    t: Translation, self: str, noise: str, lower: Number, upper: Number, training: bool, **options: object
) -> tuple[str, str]:
    """Random slopes for what is 0 or less, given as the second result; while not training, their mean."""
    _refuse_generator(options)
    low, high = _number(lower), _number(upper)
    if not training:
        mean = (low + high) / 2
        return t.kernel(lambda x: scalar.select(scalar.gt(x, 0), x, mean * x), self), noise
    slopes = generate(t, lambda draw, x: scalar.select(scalar.le(x, 0), draw(0) * (high - low) + low, 1), self)
    return t.kernel(lambda x, s: x * s, self, slopes), slopes
