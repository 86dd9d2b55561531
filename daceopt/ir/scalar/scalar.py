"""Scalar expressions: SymPy over typed symbols, with dtype inference, evaluation in NumPy and differentiation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

import dace
import numpy as np
import sympy
from sympy.core.function import FunctionClass

from daceopt.errors import Unsupported
from daceopt.ir.scalar import functions, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.functions import (  # noqa: F401  (the vocabulary of expressions, re-exported)
    FUNCTIONS,
    ScalarFunction,
    absolute,
    apart,
    atan2,
    bit_and,
    bit_not,
    bit_or,
    bit_xor,
    cast,
    ceil,
    checked,
    copysign,
    divide,
    eq,
    erfc,
    exp2,
    exp_rounded,
    exp_weight,
    expm1,
    floor,
    fmod,
    ge,
    gt,
    hypot,
    idiv,
    infinity,
    isinf,
    isnan,
    le,
    load,
    log1p,
    log2,
    log10,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    lt,
    maximum,
    minimum,
    nan,
    ne,
    nextafter,
    power,
    pymod,
    round_even,
    select,
    shift_left,
    shift_right,
    sigmoid,
    sign,
    softplus,
    trunc,
    uniform,
)

Expr: TypeAlias = sympy.Expr

TRANSCENDENTAL: tuple[FunctionClass, ...] = (
    sympy.exp,
    sympy.log,
    sympy.tanh,
    sympy.sin,
    sympy.cos,
    sympy.erf,
    softplus,
    sigmoid,
)
TRANSCENDENTAL += (expm1, log1p, exp_weight)
"""Functions that take as long as many products."""


class Weak(Enum):
    """The type of a bare number, and of a float made from integers: it takes the type of what it meets."""

    INTEGER = 0
    FLOAT = 1


_EXACT = 2**53  # larger integers are not all floats
_SAME = {"Add", "Mul", "Abs"}
# functions of SymPy that are used as they are: name -> NumPy form
_FLOAT: dict[str, Callable[..., np.ndarray]] = {
    name: getattr(np, "arc" + name[1:] if name[0] == "a" else name)
    for name in re.findall(r"\w+", "exp log sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh")
} | {"erf": functions.numpy_erf}
_INSTEAD = {
    "Max": "maximum",
    "Min": "minimum",
    "Piecewise": "select",
    "Heaviside": "select(ge(x, 0), 1, 0)",
    "sign": "sign",
    "floor": "floor",
    "ceiling": "ceil",
    "Mod": "pymod",
}


def symbol(name: str, dtype: types.DType) -> sympy.Symbol:
    """A symbol with the assumptions of ``dtype``: floats are real, integers and bool integer.

    Calls with the same name and kind of dtype give the same symbol.
    """
    if types.is_float(dtype):
        return sympy.Symbol(name, real=True)
    return sympy.Symbol(name, integer=True)


NOWHERE = -(2**62) - 1  # the index at which an array without elements may be loaded: the result is 0


def number(value: float) -> Expr:
    """``value`` in an expression: an integer where it is whole, as 1.0 is not 1 for SymPy, which multiplies by it.
    Integers are what they are, however large."""
    if isinstance(value, int | np.integer):
        return sympy.Integer(int(value))
    if not np.isfinite(value):
        return functions.operand(value)
    small_and_whole = float(value).is_integer() and abs(value) < _EXACT
    return sympy.Integer(value) if small_and_whole else sympy.Float(value, 17)


def clamp(place: sympy.Expr, extent: Dim) -> Expr:
    """The index nearest to ``place``, for a load whose result counts only where they are equal."""
    inside = minimum(maximum(place, 0), extent - 1)
    return inside if isinstance(extent, int) and extent > 0 else select(eq(extent, 0), NOWHERE, inside)


def dtype_of(
    expr: sympy.Expr, symbols: Mapping[sympy.Symbol, types.DType], default: types.DType = dace.float32
) -> types.DType:
    """The dtype of ``expr``; a bare number is an int64 or ``default``.

    Raises ``Unsupported`` for what has no C++ form.
    """
    return Types(symbols, default).strong(sympy.sympify(expr))


class Types:
    """Infers dtypes of expressions over typed symbols. Integer symbols without an entry (indices, extents) are int64.

    With ``reference=True`` every float type is float64.
    """

    def __init__(
        self, symbols: Mapping[sympy.Symbol, types.DType], default: types.DType = dace.float32, reference: bool = False
    ):
        self._symbols = symbols
        self._reference = reference
        self._default = self.canonical(default)
        self._memo: dict[Expr, types.DType | Weak] = {}

    def canonical(self, dtype: types.DType) -> types.DType:
        """The type in which ``dtype`` is computed; float64 for a float where this is the reference."""
        return dace.float64 if self._reference and types.is_float(dtype) else types.compute_type(dtype)

    def keeps_precision(self, expr: sympy.Expr) -> bool:
        """A cast to a half type that the float64 reference leaves out: it only rounds, it does not quantise."""
        return self._reference and expr.row.target in types.HALVES

    def of(self, expr: Expr) -> types.DType | Weak:
        """The type of ``expr`` by itself."""
        if expr not in self._memo:
            self._memo[expr] = self._infer(expr)
        return self._memo[expr]

    def strong(self, expr: Expr, context: types.DType | None = None) -> types.DType:
        """The dtype in which ``expr`` is computed where a value of ``context`` is wanted."""
        kind = self.of(expr)
        if not isinstance(kind, Weak):
            return kind
        if context is None or types.is_bool(context):
            return dace.int64 if kind is Weak.INTEGER else self._default
        return context if kind is Weak.INTEGER or types.is_float(context) else self._default

    def operands(self, expr: Expr, result: types.DType) -> list[types.DType]:
        """The dtype that each argument must have where ``expr`` is computed as ``result`` (given by ``strong``)."""
        rule = _rule(expr)
        if rule in ("same", "float", "pow"):
            return [result] * len(expr.args)
        if rule == "logical":
            return [dace.bool_] * len(expr.args)
        if rule == "select":
            return [dace.bool_, result, result]
        if rule == "checked":
            return [dace.bool_, result, dace.int64]
        if rule == "compare":
            return [self._resolve(self._meet(expr.args))] * len(expr.args)
        if rule == "cast":
            return [self.strong(expr.args[0], result)]
        return [dace.int64] * len(expr.args)  # uniform, and the indices of load

    def _infer(self, expr: Expr) -> types.DType | Weak:
        if expr.is_Symbol:
            return self._symbol(expr)
        if expr.is_Integer:
            return Weak.INTEGER
        if expr.is_number and not expr.has(ScalarFunction):
            return Weak.FLOAT
        if isinstance(expr, sympy.floor | sympy.Max | sympy.Min) and self._is_size(expr):
            return dace.int64
        return self._node(expr, _rule(expr))

    def _is_size(self, expr: Expr) -> bool:
        """Whether only integer symbols without a dtype of their own occur, as in extents and byte counts."""
        return all(s.is_integer and s not in self._symbols for s in expr.free_symbols)

    def _node(self, expr: Expr, rule: str) -> types.DType | Weak:
        if rule in _TYPE_BY_RULE:
            return _TYPE_BY_RULE[rule](self, expr)
        if rule == "pow" and _is_natural(expr.exp):
            return self._arithmetic(expr.args[:1])
        return self._floating(self._arithmetic(expr.args))

    def _symbol(self, expr: Expr) -> types.DType:
        if expr in self._symbols:
            dtype = self._symbols[expr]
            return self.canonical(getattr(dtype, "base_type", dtype))  # arrays of load() are pointers
        if expr.is_integer:
            return dace.int64
        names = sorted(map(str, self._symbols))
        raise Unsupported(f"symbol {expr} has no dtype: expected one of {names} or an integer index")

    def _meet(self, args: Iterable[Expr]) -> types.DType | Weak:
        kinds = [self.of(a) for a in args]
        strong = [t for t in kinds if not isinstance(t, Weak)]
        weak_float = any(t is Weak.FLOAT for t in kinds)
        if not strong:
            return Weak.FLOAT if weak_float else Weak.INTEGER
        weak_integer = any(t is Weak.INTEGER for t in kinds)
        if weak_integer and not weak_float and all(types.is_bool(t) for t in strong):
            return dace.bool_ if all(map(self._is_bit, args)) else dace.int64
        common = types.promote(*strong)
        return Weak.FLOAT if weak_float and not types.is_float(common) else common

    def _is_bit(self, expr: Expr) -> bool:
        """Whether a value that is a bool or of no type of its own is 0 or 1."""
        if not isinstance(self.of(expr), Weak) or expr in (0, 1):
            return True
        return _rule(expr) == "select" and all(map(self._is_bit, expr.args[1:])) if expr.args else False

    def _arithmetic(self, args: Iterable[Expr]) -> types.DType | Weak:
        common = self._meet(args)
        return dace.int64 if not isinstance(common, Weak) and types.is_bool(common) else common

    def _floating(self, common: types.DType | Weak) -> types.DType | Weak:
        return common if not isinstance(common, Weak) and types.is_float(common) else Weak.FLOAT

    def _resolve(self, common: types.DType | Weak) -> types.DType:
        if not isinstance(common, Weak):
            return common
        return dace.int64 if common is Weak.INTEGER else self._default


_TYPE_BY_RULE: dict[str, Callable[[Types, Expr], types.DType | Weak]] = {
    "compare": lambda kinds, expr: dace.bool_,
    "logical": lambda kinds, expr: dace.bool_,
    "literal": lambda kinds, expr: Weak.FLOAT,
    "cast": lambda kinds, expr: kinds.canonical(expr.row.target),
    "uniform": lambda kinds, expr: kinds.canonical(dace.float32),
    "load": lambda kinds, expr: kinds.of(expr.args[0]),
    "select": lambda kinds, expr: kinds._meet(expr.args[1:]),
    "checked": lambda kinds, expr: kinds._meet(expr.args[1:2]),
    "same": lambda kinds, expr: kinds._arithmetic(expr.args),
}


def _is_natural(exponent: Expr) -> bool:
    return bool(exponent.is_Integer and exponent >= 0)


def cast_target(expr: sympy.Expr) -> types.DType | None:
    """The type to which ``expr`` converts its operand; None where it is no conversion."""
    return expr.row.target if isinstance(expr, ScalarFunction) else None


def _rule(expr: Expr) -> str:
    if isinstance(expr, ScalarFunction):
        return expr.row.rule
    name = type(expr).__name__
    if name in _SAME:
        return "same"
    if name == "Pow":
        return "pow"
    if name in _FLOAT:
        return "float"
    hint = f"; use daceopt.ir.scalar.scalar.{_INSTEAD[name]}" if name in _INSTEAD else ""
    raise Unsupported(f"expression {name} in {str(expr)[:80]!r} has no scalar form{hint}")


def quotient(expr: Expr) -> tuple[list[Expr], list[Expr]]:
    """Factors above and below the fraction bar of a product or power; those below come with positive exponents."""
    above, below = [], []
    for factor in sympy.Mul.make_args(expr):
        if factor.is_Pow and factor.exp.is_number and factor.exp.is_negative:
            below.append(sympy.Pow(factor.base, -factor.exp))
        else:
            above.append(factor)
    return above, below


def exact_divisor(coefficient: sympy.Expr) -> Any:
    """n where ``coefficient`` is 1/n or -1/n for an integer that is no power of two: a quotient is rounded once, a
    product with 1/n twice. None for any other number.
    """
    if not coefficient.is_Rational or abs(coefficient.p) != 1 or coefficient.q & (coefficient.q - 1) == 0:
        return None
    return sympy.Integer(coefficient.q)


def evaluate(
    expr: sympy.Expr, values: Mapping[Any, Any], dtype: types.DType | None = None, context: types.DType | None = None
) -> np.ndarray:
    """Compute ``expr`` with NumPy, arrays broadcasting: each operation in its inferred dtype, or all floats in float64.

    ``dtype=dace.float64`` gives the float64 reference, ``None`` the expression's own types. ``context`` is the type to
    which the result is assigned. ``values`` has an array for each symbol; the result has their common shape. An array
    for ``load`` has that behind its own axes, or no more than these.
    """
    arrays = {s: np.asarray(v) for s, v in values.items()}
    types_of = Types({s: types.from_numpy(a.dtype) for s, a in arrays.items()}, reference=dtype == dace.float64)
    expr = sympy.sympify(expr)
    with np.errstate(all="ignore"):
        return _Evaluator(arrays, types_of).compute(
            expr, types_of.strong(expr, context and types_of.canonical(context))
        )


class _Evaluator:
    def __init__(self, arrays: Mapping[sympy.Symbol, np.ndarray], types_of: Types):
        self._arrays, self._types = arrays, types_of
        self._memo: dict[tuple[Expr, str], np.ndarray] = {}

    def compute(self, expr: Expr, dtype: types.DType) -> np.ndarray:
        """``expr`` as an array of ``dtype``."""
        own = self._types.strong(expr, dtype)
        key = (expr, types.name_of(own))
        if key not in self._memo:
            self._memo[key] = np.asarray(self._value(expr, own)).astype(types.to_numpy(own))
        return self._memo[key].astype(types.to_numpy(dtype))

    def _value(self, expr: Expr, own: types.DType) -> Any:
        if expr.is_Symbol:
            return self._arrays[expr]
        if expr.is_number and not expr.has(ScalarFunction):
            return int(expr) if expr.is_Integer else float(expr)
        if _rule(expr) == "load":
            return self._load(expr)
        if expr.is_Pow:
            return self._pow(expr, own)
        args = [self.compute(a, t) for a, t in zip(expr.args, self._types.operands(expr, own), strict=True)]
        if expr.is_Add:
            return sum(args[1:], args[0])
        if expr.is_Mul:
            return self._product(expr, own)
        if isinstance(expr, ScalarFunction):
            return args[0] if self._types.keeps_precision(expr) else expr.row.numpy(*args)
        return _FLOAT.get(type(expr).__name__, np.abs)(*args)

    def _product(self, expr: Expr, own: types.DType) -> Any:
        above, below = quotient(expr)
        divisor = exact_divisor(expr.args[0]) if types.is_float(own) else None
        if divisor is not None:
            above, below = [sympy.sign(expr.args[0]), *(f for f in above if f != expr.args[0])], [*below, divisor]
        result = np.ones((), types.to_numpy(own))
        for factor in above:
            result = result * self.compute(factor, own)
        for factor in below:
            result = result / self.compute(factor, own)
        return result

    def _pow(self, expr: Expr, own: types.DType) -> Any:
        base = self.compute(expr.base, own)
        if _is_natural(expr.exp):
            return base ** int(expr.exp)
        if expr.exp.is_number and expr.exp.is_negative:
            return 1 / self.compute(sympy.Pow(expr.base, -expr.exp), own)
        if expr.exp == sympy.Rational(1, 2):
            return np.sqrt(base)
        return functions.numpy_power(base, self.compute(expr.exp, own))

    def _load(self, expr: Expr) -> Any:
        array = self._arrays[expr.args[0]]
        index = tuple(self.compute(a, dace.int64) for a in expr.args[1:])
        if array.size == 0 and any((positions == NOWHERE).all() for positions in index):
            return np.zeros(np.broadcast_shapes(*(p.shape for p in index)), array.dtype)
        for axis, positions in enumerate(index):  # NumPy itself refuses those beyond the end
            if (positions < 0).any():
                raise IndexError(f"{expr.args[0]}: index {positions.min()} on axis {axis}; expected 0 or more")
        own = np.ogrid[tuple(slice(n) for n in array.shape[len(index) :])]  # axes of the domain: see evaluate
        place = (*index, *own)
        return array[place]


def differentiate(expr: sympy.Expr, by: sympy.Symbol) -> Expr:
    """d ``expr`` / d ``by``, with PyTorch's choice at kinks (relu 0 at 0, |x| 0 at 0, one half where two tensors tie).

    Raises ``Unsupported`` when the derivative has no scalar form.
    """
    own = sympy.sympify(expr).replace(sympy.Abs, functions.absolute)
    own = own.replace(lambda e: e.is_Pow and e.exp.free_symbols, lambda e: functions.power(*e.args))
    _refuse_by_load(own, by)
    result = sympy.diff(own, by)
    bad = result.atoms(sympy.Derivative, sympy.Subs, sympy.Heaviside, sympy.DiracDelta, sympy.re, sympy.im, sympy.sign)
    if bad:
        name = sorted(map(str, bad))[0]
        raise Unsupported(f"derivative of {str(expr)[:80]!r} by {by} contains {name!r}: give it a gradient rule")
    return result.replace(functions.absolute, sympy.Abs).replace(functions.power, sympy.Pow)


def _refuse_by_load(expr: Expr, by: sympy.Symbol) -> None:
    for read in expr.atoms(functions.load):
        if read.args[0] == by:
            raise Unsupported(f"{read} cannot be differentiated by the array it reads: give it a gradient rule")
