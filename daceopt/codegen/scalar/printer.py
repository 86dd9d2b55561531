"""Prints scalar expressions as C++: every operation in its own type, every literal typed and exact."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import dace
import numpy as np
import sympy
from sympy.printing.cxx import CXX17CodePrinter

from daceopt.errors import Unsupported
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.functions import ScalarFunction

_LARGEST_POWER = 8  # each squaring doubles the error: eight factors are 2.5 units off, 64 would be 30


class Printer(CXX17CodePrinter):
    """Prints expressions over symbols of known dtypes; integer symbols without a dtype (indices, extents) are int64.

    ``names`` says how symbols are called in the code (default: their own names); ``loads`` prints ``load(array, i...)``
    from the array symbol, the printed indices and these themselves; ``floor_division`` is the function for sizes that
    are quotients. ``computed`` may be set: expressions that have a variable already.
    """

    def __init__(
        self,
        symbols: Mapping[sympy.Symbol, types.DType],
        names: Mapping[sympy.Symbol, str] | None = None,
        loads: Any = None,
        floor_division: str = "dop::floordiv",
    ):
        super().__init__()
        self._infer = scalar.Types(symbols)
        self._names = names or {}
        self._loads = loads
        self._floor_division = floor_division
        self.computed: Mapping[sympy.Expr, str] = {}
        self._dtype = dace.float32  # in which the expression at hand is computed

    def text(self, expr: Dim, dtype: types.DType) -> str:
        """``expr`` converted to ``dtype`` (for a type of storage: the type in which that is computed), as a primary
        expression. Raises ``Unsupported`` where it has no C++ form.
        """
        expr, dtype = sympy.sympify(expr), types.compute_type(dtype)
        own = self._infer.strong(expr, dtype)
        outer, self._dtype = self._dtype, own
        code = self._print(expr)
        self._dtype = outer
        return convert(code, own, dtype)

    def size(self, extent: Dim) -> str:
        """An extent, stride or offset, which is whole for all sizes that can occur, as an int64 expression."""
        if isinstance(extent, sympy.Expr) and any(not r.is_Integer for r in extent.atoms(sympy.Rational)):
            extent = sympy.floor(extent)
        return self.text(extent, dace.int64)

    def _print(self, expr: Any, **kwargs: Any) -> str:
        if expr in self.computed:
            return self.computed[expr]
        # SymPy dispatches on class names, and has printers of its own for some of ours (isnan, log1p, floor)
        if isinstance(expr, ScalarFunction):
            return self._print_Function(expr)
        return str(super()._print(expr, **kwargs))

    def emptyPrinter(self, expr: sympy.Basic) -> str:
        raise Unsupported(f"no C++ form for {type(expr).__name__} in {str(expr)[:80]!r}")

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self._names.get(expr, str(expr))

    def _print_Number(self, expr: sympy.Expr) -> str:
        return literal(expr, self._dtype)

    _print_Integer = _print_Rational = _print_Float = _print_NumberSymbol = _print_Number
    _print_Zero = _print_One = _print_NegativeOne = _print_Half = _print_Pi = _print_Exp1 = _print_Number
    _print_NaN = _print_Infinity = _print_NegativeInfinity = _print_Number

    def _print_Add(self, expr: sympy.Expr, order: Any = None) -> str:
        code = self.text(expr.args[0], self._dtype)
        for term in expr.args[1:]:
            negative = term.could_extract_minus_sign() and (term.is_Mul or term.is_Number)
            code += f" {'-' if negative else '+'} {self.text(-term if negative else term, self._dtype)}"
        return self._narrow(f"({code})")

    def _print_Mul(self, expr: sympy.Expr) -> str:
        if not expr.free_symbols and not expr.has(ScalarFunction):
            return literal(expr, self._dtype)
        dtype = self._dtype
        numbers = [f for f in expr.args if f.is_number and not f.has(ScalarFunction)]
        coefficient = sympy.Mul(*numbers)
        above, below = scalar.quotient(sympy.Mul(*(f for f in expr.args if f not in numbers)))
        divisor = scalar.exact_divisor(coefficient)
        if divisor is not None and types.is_float(dtype):
            coefficient, below = sympy.sign(coefficient), [*below, divisor]
        factors = [self.text(f, dtype) for f in above if f != 1]
        if coefficient not in (1, -1) or not factors:
            factors.insert(0, literal(abs(coefficient) if coefficient == -1 else coefficient, dtype))
        code = " * ".join(factors)
        for factor in below:
            code += f" / {self.text(factor, dtype)}"
        if coefficient != -1:
            return self._narrow(f"({code})")
        return self._narrow(f"(-{code})" if len(factors) == 1 and not below else f"(-({code}))")

    def _print_Pow(self, expr: sympy.Expr) -> str:
        base, exponent, dtype = expr.base, expr.exp, self._dtype
        if not expr.free_symbols and not expr.has(ScalarFunction):
            return literal(expr, dtype)
        if exponent.is_number and exponent.is_negative:
            return f"({literal(sympy.S.One, dtype)} / {self.text(sympy.Pow(base, -exponent), dtype)})"
        whole, half = _split_exponent(exponent)
        if whole is None:
            return f"dop::power({self.text(base, dtype)}, {self.text(exponent, dtype)})"
        if whole and not half and not types.is_float(dtype):  # sizes are printed where scalar.h is not included
            return self._narrow("(" + " * ".join([self.text(base, dtype)] * whole) + ")")
        if whole == 0:
            return f"dop::sqrt({self.text(base, dtype)})" if half else literal(sympy.S.One, dtype)
        return f"dop::{'half_power' if half else 'ipow'}<{whole}>({self.text(base, dtype)})"

    def _print_Function(self, expr: sympy.Expr) -> str:
        name, dtype = type(expr).__name__, self._dtype
        if not isinstance(expr, ScalarFunction):
            if name == "floor" and types.is_integer(dtype):
                return self._floor_quotient(expr)
            suffix = "f" if dtype == dace.float32 else ""
            return f"{name}{suffix}({self.text(expr.args[0], dtype)})"
        if name == "load":
            index = [self.text(i, dace.int64) for i in expr.args[1:]]
            return str(self._loads(expr.args[0], index, expr.args[1:]))
        operands = self._infer.operands(expr, dtype)
        args = [self.text(a, t) for a, t in zip(expr.args, operands, strict=True)]
        if expr.row.rule == "cast" and not expr.row.cpp:
            return convert(args[0], operands[0], dtype)
        return str(expr.row.cpp.format(*args, type=types.cpp(dtype)))

    def _of_our_own(self, expr: sympy.Expr) -> str:
        return f"dop::{type(expr).__name__}({self.text(expr.args[0], self._dtype)})"

    _print_exp = _print_erf = _of_our_own
    _print_log = _print_sin = _print_cos = _print_tan = _print_Function
    _print_sinh = _print_cosh = _print_tanh = _print_asinh = _print_acosh = _print_atanh = _print_Function
    _print_asin = _print_acos = _print_atan = _print_floor = _print_Function

    def _print_Abs(self, expr: sympy.Expr) -> str:
        return f"dop::abs({self.text(expr.args[0], self._dtype)})"

    def _print_Max(self, expr: sympy.Expr) -> str:
        return self._extreme(expr.args, ">")

    def _print_Min(self, expr: sympy.Expr) -> str:
        return self._extreme(expr.args, "<")

    def _extreme(self, terms: Sequence[sympy.Expr], better: str) -> str:
        """Of sizes, which are printed where scalar.h is not included, too."""
        code = self.text(terms[0], self._dtype)
        for term in terms[1:]:
            other = self.text(term, self._dtype)
            code = f"({code} {better} {other} ? {code} : {other})"
        return code

    def _floor_quotient(self, expr: sympy.Expr) -> str:
        above, below = _as_fraction(expr.args[0])
        return f"{self._floor_division}({self.text(above, dace.int64)}, {self.text(below, dace.int64)})"

    def _narrow(self, code: str) -> str:
        """C++ computes small integers as int; results must wrap in their own type."""
        small = types.is_integer(self._dtype) and types.itemsize(self._dtype) < 4
        return f"{types.cpp(self._dtype)}{code}" if small else code


@lru_cache(1 << 12)  # places in memory of open sizes are sums of the same quotients
def _as_fraction(expr: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Numerator and denominator of a sum of quotients."""
    above, below = sympy.together(expr).as_numer_denom()
    return above, below


def literal(value: sympy.Expr, dtype: types.DType) -> str:
    """A number as a literal of exactly ``dtype``: ``0.1f``, ``0.1``, ``INT64_C(3)``, ``true``.

    Of a type of storage: of the type in which that is computed.
    """
    dtype = types.compute_type(dtype)
    if types.is_bool(dtype):
        return "true" if value != 0 else "false"
    if types.is_float(dtype):
        return _float_literal(value, dtype)
    number = int(value)
    limits = np.iinfo(types.to_numpy(dtype))
    if not limits.min <= number <= limits.max:
        raise Unsupported(f"constant {number} does not fit {types.name_of(dtype)}")
    if dtype == dace.int32:
        return str(number) if number >= 0 and number < limits.max else f"int32_t({number})"
    if dtype == dace.int64:
        return f"INT64_C({number})" if number >= 0 else f"(-INT64_C({-number - 1}) - 1)"
    if dtype == dace.uint64:
        return f"UINT64_C({number})"
    return f"{types.cpp(dtype)}({number})"


def _float_literal(value: sympy.Expr, dtype: types.DType) -> str:
    number = to_float(value)
    name = types.cpp(dtype)
    with np.errstate(over="ignore"):
        rounded = types.to_numpy(dtype).type(number)
    if math.isnan(rounded):
        return f"dop::nan<{name}>()"
    if math.isinf(rounded):
        return f"dop::infinity<{name}>()" if rounded > 0 else f"(-dop::infinity<{name}>())"
    text = (
        np.format_float_positional(rounded, trim="0") if 1e-4 <= abs(rounded) < 1e7 or rounded == 0 else f"{rounded!s}"
    )
    suffix = "f" if dtype == dace.float32 else ""
    return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"


def to_float(value: sympy.Expr) -> float:
    """The float64 nearest to a SymPy number; raises ``Unsupported`` for complex ones."""
    number = sympy.sympify(value)
    if number.is_infinite or number is sympy.nan:
        return float(number)
    number = number if number.is_Rational or number.is_Float else number.evalf(20)
    if not number.is_Number:
        raise Unsupported(f"constant {str(value)[:80]} is not a real number")
    return float(number)


def convert(code: str, source: types.DType, target: types.DType) -> str:
    """A value of the type ``source`` as one of ``target``."""
    if source == target:
        return code
    if types.is_bool(target):
        return f"({code} != 0)"
    if types.is_bool(source):  # gcc takes lanes apart to convert them
        return f"({code} ? {types.cpp(target)}(1) : {types.cpp(target)}(0))"
    return f"{types.cpp(target)}({code})"


def _split_exponent(exponent: sympy.Expr) -> tuple[int | None, bool]:
    """(n, has a half) where the exponent is n or n + 1/2 for a small n; (None, False) otherwise."""
    if not exponent.is_number:
        return None, False
    doubled = 2 * float(exponent)
    if int(doubled) != doubled or doubled > 2 * _LARGEST_POWER:
        return None, False
    return int(doubled) // 2, int(doubled) % 2 == 1


def statements(assignments: Iterable[Assignment], printer: Printer, names: Mapping[sympy.Symbol, str]) -> list[str]:
    """One C++ declaration for each assignment; ``names`` gives the variable of each assigned symbol."""
    return [f"const {types.cpp(a.dtype)} {names[a.symbol]} = {printer.text(a.expr, a.dtype)};" for a in assignments]
