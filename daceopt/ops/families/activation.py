"""Activations. Where a function has a kink, the form chosen gives PyTorch's derivative there, and NaN stays NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import sympy

from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ops.core.registry import FLOATS, NUMBERS, Names, Operator, elementwise, lowering

_HALF = sympy.Rational(1, 2)


def relu(x: sympy.Expr) -> sympy.Expr:
    return scalar.select(scalar.le(x, 0), 0, x)


def softsign(x: sympy.Expr) -> sympy.Expr:
    return x / (1 + sympy.Abs(x))


def _elu(x: sympy.Expr, alpha: object) -> sympy.Expr:
    return scalar.select(scalar.gt(x, 0), x, alpha * scalar.expm1(x))


def _between_0_and_1(t: sympy.Expr) -> sympy.Expr:
    return scalar.select(scalar.le(t, 0), 0, scalar.select(scalar.ge(t, 1), 1, t))


elementwise("Relu", relu, types=NUMBERS)
elementwise("Sigmoid", scalar.sigmoid)
elementwise("Softplus", scalar.softplus)
elementwise("Softsign", softsign)
elementwise("Mish", lambda x: x * sympy.tanh(scalar.softplus(x)))
elementwise("HardSwish", lambda x: x * _between_0_and_1(x / 6 + _HALF))
elementwise("PRelu", lambda x, slope: scalar.select(scalar.gt(x, 0), x, slope * x), types=NUMBERS)


def gelu(x: sympy.Expr) -> sympy.Expr:
    """x times the standard normal distribution function."""
    return _HALF * x * (1 + sympy.erf(x * sympy.Float(math.sqrt(0.5))))


def gelu_tanh(x: sympy.Expr) -> sympy.Expr:
    """The tanh approximation of :func:`gelu`."""
    return _HALF * x * (1 + sympy.tanh(sympy.Float(math.sqrt(2 / math.pi)) * (x + sympy.Float(0.044715) * x**3)))


@lowering("Gelu", types=FLOATS)
def lower_gelu(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    form = gelu_tanh if node.attribute("approximate") == "tanh" else gelu
    b.elementwise(form, inputs[0], out=outputs[0], label="gelu")  # type: ignore[arg-type]


FORMS: dict[str, tuple[tuple[str, ...], Callable[..., sympy.Expr]]] = {}
"""Activations with parameters: their names, and the form ``form(x, *values)``."""


def _with_attributes(op_type: str, names: tuple[str, ...], form: Callable[..., sympy.Expr]) -> None:
    """Register ``form(x, *attribute values)``."""
    FORMS[op_type] = names, form

    def rule(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
        values = [scalar.number(node.attribute(n)) for n in names]
        b.elementwise(lambda x: form(x, *values), inputs[0], out=outputs[0], label=op_type.lower())  # type: ignore[arg-type]

    lowering(op_type, types=FLOATS)(rule)


_with_attributes("Elu", ("alpha",), _elu)
_with_attributes("Selu", ("alpha", "gamma"), lambda x, alpha, gamma: gamma * _elu(x, alpha))
_with_attributes(
    "Celu", ("alpha",), lambda x, alpha: scalar.select(scalar.gt(x, 0), x, alpha * scalar.expm1(x / alpha))
)
_with_attributes("LeakyRelu", ("alpha",), lambda x, alpha: scalar.select(scalar.gt(x, 0), x, alpha * x))
_with_attributes("ThresholdedRelu", ("alpha",), lambda x, alpha: scalar.select(scalar.le(x, alpha), 0, x))
_with_attributes("HardSigmoid", ("alpha", "beta"), lambda x, alpha, beta: _between_0_and_1(alpha * x + beta))
_with_attributes("Swish", ("alpha",), lambda x, alpha: x * scalar.sigmoid(alpha * x))
_with_attributes(
    "Shrink",
    ("lambd", "bias"),
    lambda x, lambd, bias: scalar.select(
        scalar.lt(x, -lambd), x + bias, scalar.select(scalar.gt(x, lambd), x - bias, 0)
    ),
)
