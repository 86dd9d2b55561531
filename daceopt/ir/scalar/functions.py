"""The scalar functions that SymPy lacks or would simplify wrongly: a table, and a SymPy class made from each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import sympy
from sympy.core.function import FunctionClass
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom

from daceopt.ir.scalar import checks, narrow, philox, types

Expr: TypeAlias = sympy.Expr


@dataclass(frozen=True)
class FunctionRow:
    """How one function is typed, printed, computed with NumPy and differentiated.

    ``rule`` says which dtypes it takes and gives: ``same`` (operands meet in one type, the result's), ``float``
    (the same, integers become float), ``compare`` (operands meet, the result is bool), ``logical`` (bool to bool),
    ``select``, ``cast``, ``load``, ``checked``, ``uniform``, ``literal`` (takes the type of its context).
    ``derivative`` has one function of the arguments per argument; None where the function is piecewise constant.
    """

    arity: int | None
    rule: str
    cpp: str  # a format string over the printed operands; {type} is the C++ type of the result
    numpy: Callable[..., np.ndarray | float]
    derivative: tuple[Callable[..., Expr | int] | None, ...] = ()
    target: types.DType | None = None  # casts


class ScalarFunction(sympy.Function):
    """Base of our functions: never evaluated on numbers, always real, differentiated by the table."""

    row: FunctionRow
    is_real = True
    is_commutative = True
    is_number = False  # also of numbers: SymPy would ask for their value again and again

    def __new__(cls, *args: object, **options: object) -> sympy.Expr:
        if cls.row.rule == "load" and len(args) == 1:
            return operand(args[0])  # an array without axes is read as its one element
        return super().__new__(cls, *(operand(a) for a in args), **options)

    @classmethod
    def _should_evalf(cls, arg: sympy.Expr) -> int:
        return -1

    def _eval_evalf(self, prec: int) -> sympy.Expr:
        return self

    def fdiff(self, argindex: int = 1) -> Expr | int:
        """The partial derivative by an argument (counted from 1), from the table."""
        rules = self.row.derivative
        rule = rules[argindex - 1] if argindex <= len(rules) else None
        return sympy.S.Zero if rule is None else rule(*self.args)

    def _eval_derivative(self, s: sympy.Symbol) -> sympy.Expr:
        if self.row.rule != "select":
            terms = [(a.diff(s), k) for k, a in enumerate(self.args, 1)]
            return sympy.Add(*(d * self.fdiff(k) for d, k in terms if d != 0))
        condition, yes, no = self.args
        d_yes, d_no = yes.diff(s), no.diff(s)
        return d_yes if d_yes == d_no else type(self)(condition, d_yes, d_no)


def operand(value: object) -> sympy.Expr:
    """SymPy form of an argument: comparisons and infinities become our own functions, booleans become 0 and 1."""
    value = sympy.sympify(value)
    if isinstance(value, BooleanAtom):
        return sympy.Integer(bool(value))
    if isinstance(value, Relational):
        return _RELATIONS[value.rel_op](value.lhs, value.rhs)
    if value is sympy.oo or value is -sympy.oo:
        return infinity() if value is sympy.oo else -infinity()
    return nan() if value is sympy.nan else value


def _tie(a: sympy.Expr, b: sympy.Expr, smaller_loses: bool) -> sympy.Expr:
    """Derivative of max (or min) by ``a`` as in PyTorch: 1/2 where tensors tie, 0 where one equals a constant."""
    below, at_least = (lt, le) if smaller_loses else (gt, ge)
    if not b.free_symbols:
        return select(at_least(a, b), 0, 1)
    if not a.free_symbols:
        return sympy.S.Zero
    return select(below(a, b), 0, select(eq(a, b), sympy.Rational(1, 2), 1))


def _by_exponent(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    slope = power(a, b) * sympy.log(a)
    return slope if a.is_positive else select(logical_and(eq(a, 0), ge(b, 0)), 0, slope)


def numpy_erf(x: np.ndarray) -> np.ndarray:
    """The error function, computed in float64."""
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _numpy_erfc(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erfc, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _slope_of_absolute(x: sympy.Expr) -> sympy.Expr:
    """The sign, but 0 for NaN, as in PyTorch. A factor, not a choice: an infinite gradient times 0 is NaN."""
    return sign(select(isnan(x), 0, x))


def _turn(x: sympy.Expr, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """``x / (a**2 + b**2)``, 0 at the origin, as in PyTorch."""
    return select(eq(a * a + b * b, 0), 0, x / (a * a + b * b))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _integer_or(integer: Callable[..., np.ndarray], floating: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """``integer`` with divisors of 0 replaced (the result there is 0), ``floating`` for floats."""

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if np.asarray(b).dtype.kind == "f":
            return floating(a, b)
        safe = np.where(b == 0, np.ones_like(b), b)
        return np.where(b == 0, np.zeros_like(b), integer(a, safe))

    return compute


def _truncated_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a - np.fmod(a, b)) // b


def numpy_power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a ** b``; integers to a negative power are 0 unless the base is 1 or -1."""
    if np.asarray(a).dtype.kind == "f":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0))).astype(np.asarray(a).dtype)


def _unchanged_integer(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda x: function(x) if np.asarray(x).dtype.kind == "f" else x


def _false_for_integer(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda x: function(x) if np.asarray(x).dtype.kind == "f" else np.zeros(np.shape(x), np.bool_)


def _compare(symbol: str, compute: Callable[..., np.ndarray]) -> FunctionRow:
    return FunctionRow(2, "compare", f"({{0}} {symbol} {{1}})", compute)


def _row(
    arity: int, rule: str, name: str, compute: Callable[..., np.ndarray], *derivative: Callable[..., Expr | int] | None
) -> FunctionRow:
    operands = ", ".join(f"{{{k}}}" for k in range(arity))
    return FunctionRow(arity, rule, f"dop::{name}({operands})", compute, derivative)


# made from the table below, whose derivatives call them
sigmoid: FunctionClass
power: FunctionClass
select: FunctionClass
eq: FunctionClass
exp2: FunctionClass
exp_rounded: FunctionClass
exp_weight: FunctionClass
hypot: FunctionClass
copysign: FunctionClass
trunc: FunctionClass
floor: FunctionClass

FUNCTIONS: dict[str, FunctionRow] = {
    "sigmoid": _row(1, "float", "sigmoid", _sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x))),
    "softplus": _row(1, "float", "softplus", lambda x: np.logaddexp(x, np.zeros_like(x)), lambda x: sigmoid(x)),
    "log1p": _row(1, "float", "log1p", np.log1p, lambda x: 1 / (1 + x)),
    "expm1": _row(1, "float", "expm1", np.expm1, lambda x: sympy.exp(x)),
    "exp2": _row(1, "float", "exp2", np.exp2, lambda x: exp2(x) * sympy.Float(math.log(2), 17)),
    # whose result is rounded to bfloat16, or weighs what is: as few of a float's digits as that takes
    "exp_rounded": _row(1, "float", "exp_rounded", np.exp, lambda x: exp_rounded(x)),
    # of a weight that only products read: 0 where it would be lost in a sum of weights, the largest of which is 1
    "exp_weight": _row(1, "float", "exp_weight", np.exp, lambda x: exp_weight(x)),
    "log2": _row(1, "float", "log2", np.log2, lambda x: 1 / (x * sympy.Float(math.log(2), 17))),
    "log10": _row(1, "float", "log10", np.log10, lambda x: 1 / (x * sympy.Float(math.log(10), 17))),
    "erfc": _row(
        1, "float", "erfc", _numpy_erfc, lambda x: sympy.Float(-2 / math.sqrt(math.pi), 17) * sympy.exp(-x * x)
    ),
    "atan2": _row(2, "float", "atan2", np.arctan2, lambda a, b: _turn(b, a, b), lambda a, b: _turn(-a, a, b)),
    "hypot": _row(2, "float", "hypot", np.hypot, lambda a, b: a / hypot(a, b), lambda a, b: b / hypot(a, b)),
    "copysign": _row(
        2, "float", "copysign", np.copysign, lambda a, b: select(eq(a, 0), 0, apart(copysign(a, b) / a)), None
    ),
    "nextafter": _row(2, "float", "nextafter", np.nextafter),
    "absolute": _row(1, "same", "abs", np.abs, lambda x: _slope_of_absolute(x)),
    "power": _row(
        2,
        "same",
        "power",
        numpy_power,
        lambda a, b: select(eq(b, 0), 0, b * power(a, b - 1)),
        lambda a, b: _by_exponent(a, b),
    ),
    "divide": FunctionRow(
        2, "float", "({0} / {1})", np.true_divide, (lambda a, b: 1 / b, lambda a, b: -a / (b * b))
    ),  # by a number: a / b is a product with its reciprocal for SymPy
    "maximum": _row(2, "same", "maximum", np.maximum, lambda a, b: _tie(a, b, True), lambda a, b: _tie(b, a, True)),
    "minimum": _row(2, "same", "minimum", np.minimum, lambda a, b: _tie(a, b, False), lambda a, b: _tie(b, a, False)),
    "select": _row(3, "select", "select", np.where),
    "lt": _compare("<", np.less),
    "le": _compare("<=", np.less_equal),
    "gt": _compare(">", np.greater),
    "ge": _compare(">=", np.greater_equal),
    "eq": _compare("==", np.equal),
    "ne": _compare("!=", np.not_equal),
    "logical_and": FunctionRow(2, "logical", "({0} & {1})", np.logical_and),
    "logical_or": FunctionRow(2, "logical", "({0} | {1})", np.logical_or),
    "logical_xor": FunctionRow(2, "logical", "({0} != {1})", np.logical_xor),
    "logical_not": FunctionRow(1, "logical", "(!{0})", np.logical_not),
    "bit_and": _row(2, "same", "bit_and", np.bitwise_and),
    "bit_or": _row(2, "same", "bit_or", np.bitwise_or),
    "bit_xor": _row(2, "same", "bit_xor", np.bitwise_xor),
    "bit_not": _row(1, "same", "bit_not", np.invert),
    "shift_left": _row(2, "same", "shift_left", np.left_shift),
    "shift_right": _row(2, "same", "shift_right", np.right_shift),
    "floor": _row(1, "same", "floor", _unchanged_integer(np.floor)),
    "ceil": _row(1, "same", "ceil", _unchanged_integer(np.ceil)),
    "trunc": _row(1, "same", "trunc", _unchanged_integer(np.trunc)),
    "round_even": _row(1, "same", "round_even", _unchanged_integer(np.rint)),
    "sign": _row(1, "same", "sign", np.sign),
    "isnan": FunctionRow(1, "compare", "dop::isnan({0})", _false_for_integer(np.isnan)),
    "isinf": FunctionRow(1, "compare", "dop::isinf({0})", _false_for_integer(np.isinf)),
    "fmod": _row(2, "same", "fmod", _integer_or(np.fmod, np.fmod), lambda a, b: 1, lambda a, b: -trunc(a / b)),
    "pymod": _row(2, "same", "pymod", _integer_or(np.mod, np.mod), lambda a, b: 1, lambda a, b: -floor(a / b)),
    "idiv": _row(2, "same", "idiv", _integer_or(_truncated_quotient, lambda a, b: np.trunc(a / b))),
    "infinity": FunctionRow(0, "literal", "dop::infinity<{type}>()", lambda: np.inf),
    "nan": FunctionRow(0, "literal", "dop::nan<{type}>()", lambda: np.nan),
    "uniform": _row(3, "uniform", "uniform", philox.uniform),
    "load": FunctionRow(None, "load", "", lambda array, *index: array[index]),
    "apart": FunctionRow(1, "same", "({0})", lambda x: x, (lambda x: 1,)),  # its operand, which SymPy takes for another
    "checked": FunctionRow(3, "checked", "dop::checked({0}, {1}, {2}, bad)", checks.require, (None, lambda c, x, k: 1)),
}
# how a cast to the type may round and whether it saturates; other types of 8 bits: saturate, or keep infinities
_MODES = {"float8_e8m0fnu": tuple(f"{d}{end}" for end in ("", "_unbounded") for d in ("up", "down", "nearest"))}


def _cast_row(dtype: types.DType, mode: str = "") -> FunctionRow:
    derivative = (lambda x: 1,) if types.is_float(dtype) else (None,)
    suffix = f"_{mode}" if mode else ""
    text = f"dop::{types.name_of(dtype)}::round{suffix}({{0}})" if types.is_narrow(dtype) else ""
    return FunctionRow(1, "cast", text, narrow.rounding(dtype, mode), derivative, target=dtype)


for _dtype in types.ALL:
    _name = types.name_of(_dtype)
    FUNCTIONS[f"cast_{_name}"] = _cast_row(_dtype)
    for _mode in _MODES.get(_name, ("unbounded",) if _name.startswith("float8") else ()):
        FUNCTIONS[f"cast_{_name}_{_mode}"] = _cast_row(_dtype, _mode)


def _define(name: str, row: FunctionRow) -> FunctionClass:
    members: dict[str, Any] = {"row": row, "__module__": __name__}
    if row.arity is not None:
        members["nargs"] = row.arity
    return FunctionClass(name, (ScalarFunction,), members)


# module-level names so that expressions can be pickled and copied
CLASSES: dict[str, FunctionClass] = {name: _define(name, row) for name, row in FUNCTIONS.items()}
globals().update(CLASSES)
sigmoid, softplus, log1p, expm1 = (CLASSES[n] for n in ("sigmoid", "softplus", "log1p", "expm1"))
exp2, exp_rounded, exp_weight = (CLASSES[n] for n in ("exp2", "exp_rounded", "exp_weight"))
log2, log10, erfc = (CLASSES[n] for n in ("log2", "log10", "erfc"))
divide: FunctionClass = CLASSES["divide"]
atan2, hypot, copysign, nextafter = (CLASSES[n] for n in ("atan2", "hypot", "copysign", "nextafter"))
absolute, power, maximum, minimum, select = (CLASSES[n] for n in ("absolute", "power", "maximum", "minimum", "select"))
lt, le, gt, ge, eq, ne = (CLASSES[n] for n in ("lt", "le", "gt", "ge", "eq", "ne"))
logical_and, logical_or, logical_not, logical_xor = (CLASSES[f"logical_{n}"] for n in ("and", "or", "not", "xor"))
bit_and, bit_or, bit_xor, bit_not = (CLASSES[f"bit_{n}"] for n in ("and", "or", "xor", "not"))
shift_left, shift_right = (CLASSES[f"shift_{n}"] for n in ("left", "right"))
floor, ceil, trunc, round_even, sign = (CLASSES[n] for n in ("floor", "ceil", "trunc", "round_even", "sign"))
isnan, isinf, fmod, pymod, idiv = (CLASSES[n] for n in ("isnan", "isinf", "fmod", "pymod", "idiv"))
apart: FunctionClass = CLASSES["apart"]
infinity, nan, uniform, load = (CLASSES[n] for n in ("infinity", "nan", "uniform", "load"))
checked: FunctionClass = CLASSES["checked"]
_RELATIONS: dict[str, FunctionClass] = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}


def cast(x: sympy.Expr, dtype: types.DType, mode: str = "") -> Expr:
    """``x`` converted to ``dtype`` as C++ does; the gradient passes between floats and stops at integers and bool.

    For a narrow type: rounded to its values (to nearest, ties to even; 8-bit floats saturate), but of the type in which
    those are computed. ``mode``: ``unbounded`` for 8-bit floats that do not saturate; ``up``, ``down`` or ``nearest``
    for float8_e8m0fnu (default: up), or these with ``_unbounded``.
    """
    return CLASSES[f"cast_{types.name_of(dtype)}{'_' if mode else ''}{mode}"](x)
