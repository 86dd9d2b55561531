"""Scalar expressions and extents as text, and back: the very same tree, of the very same symbols.

``+ - * / **``, calls of the functions of ``functions.FUNCTIONS`` and of SymPy's own that scalar code knows; what SymPy
has under a name of ours is written with a capital: ``Floor``, ``Ceiling``, ``Min``, ``Max``, ``Mod``, ``Abs``. Foreign
text is parsed, never evaluated: nothing but these nodes can come of it.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import sympy

from daceopt.errors import GraphTextError, Unsupported
from daceopt.ir.scalar import functions
from daceopt.ir.scalar.functions import ScalarFunction

_MAX_LENGTH = 100_000
_MAX_DEPTH = 150  # of nested brackets; scalar code stays far below, and beyond it Python itself gives up
_MAX_POWER = 64  # of a number: what SymPy may multiply out later
_DOUBLE = 53  # bits of precision of a Python float
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMPY = "exp log sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh erf".split()
_OWN: dict[str, Callable[..., sympy.Expr]] = {
    **{name: getattr(sympy, name) for name in _SYMPY},
    "Floor": sympy.floor,
    "Ceiling": sympy.ceiling,
    "Min": sympy.Min,
    "Max": sympy.Max,
    "Mod": sympy.Mod,
    "Abs": sympy.Abs,
    "Add": sympy.Add,
    "Mul": sympy.Mul,
    "Pow": sympy.Pow,
}
_NUMBERS = {"pi": sympy.pi, "E": sympy.E}
_NAMES = {function: name for name, function in _OWN.items()}
Symbols = Callable[[str], sympy.Symbol]


# ---------------------------------------------------------------- writing


def text(expr: sympy.Expr) -> str:
    """``expr`` in the notation that :func:`parse` reads. Raises Unsupported for what has none."""
    return _text(sympy.sympify(expr))


@lru_cache(1 << 14)  # extents and indices occur again and again
def _text(expr: sympy.Expr) -> str:
    if expr.is_Add and not any(t.is_Add for t in expr.args) and not any(t.is_Number for t in expr.args[1:]):
        return _sum(expr.args)
    if expr.is_Mul and _is_plain(expr.args):
        return _product(expr.args)
    if expr.is_Pow:
        return f"1/{_factor(expr.base)}" if _is_inverse(expr) else f"{_operand(expr.base)}**{_exponent(expr.exp)}"
    return _leaf(expr)


def _leaf(expr: sympy.Expr) -> str:
    if expr.is_Symbol:
        return _symbol(str(expr))
    if expr.is_Integer or expr.is_Rational:
        return str(expr)
    if expr.is_Float:
        return _float(expr)
    constants = [name for name, value in _NUMBERS.items() if expr is value]
    if constants:
        return f"{constants[0]}()"
    name = type(expr).__name__ if isinstance(expr, ScalarFunction) else _NAMES.get(type(expr))
    if name is None:
        raise Unsupported(f"no text for {type(expr).__name__} in {str(expr)[:80]!r}")
    return f"{name}({', '.join(map(text, expr.args))})"


def _symbol(name: str) -> str:
    return name if _NAME.fullmatch(name) and not keyword.iskeyword(name) else f"symbol({name!r})"


def _float(expr: sympy.Expr) -> str:
    value = float(expr)
    if sympy.Float(value)._mpf_ != expr._mpf_:
        sign, mantissa, exponent, _ = expr._mpf_
        return f"Float({-mantissa if sign else mantissa}, {exponent}, {expr._prec})"
    return repr(value) if expr._prec == _DOUBLE else f"Float({value!r}, {expr._prec})"


def _sum(terms: Sequence[sympy.Expr]) -> str:
    """The number last, as people write it; SymPy has it first."""
    ordered = [*terms[1:], terms[0]] if terms[0].is_Number else terms
    first, *rest = map(text, ordered)
    return first + "".join(f" - {t[1:]}" if t.startswith("-") else f" + {t}" for t in rest)


def _is_plain(factors: Sequence[sympy.Expr]) -> bool:
    """A number, if any, comes first, and no product: what reading gives back as it is."""
    first = factors[0]
    return not first.is_Mul and not any(f.is_Number for f in factors[1:]) and len(factors) > 1 and first != 1


def _product(factors: Sequence[sympy.Expr]) -> str:
    first, *rest = factors
    sign = "-" if first == -1 else ""
    if sign:
        first, *rest = rest
    start = f"1/{_factor(first.base)}" if _is_inverse(first) else text(first) if first.is_Number else _factor(first)
    return sign + start + "".join(f"/{_factor(f.base)}" if _is_inverse(f) else f"*{_factor(f)}" for f in rest)


def _factor(expr: sympy.Expr) -> str:
    return text(expr) if expr.is_Pow and not _is_inverse(expr) else _operand(expr)


def _is_inverse(expr: sympy.Expr) -> bool:
    return bool(expr.is_Pow and expr.exp == -1 and not expr.base.is_Number)


def _operand(expr: sympy.Expr) -> str:
    """In brackets, unless it binds as tightly as a name."""
    code = text(expr)
    tight = not (expr.is_Add or expr.is_Mul or _is_inverse(expr)) and not code.startswith("-")
    return code if tight and not (expr.is_Rational and not expr.is_Integer) and not expr.is_Pow else f"({code})"


def _exponent(expr: sympy.Expr) -> str:
    return str(expr) if expr.is_Integer else _operand(expr)


# ---------------------------------------------------------------- reading


def parse(source: str, symbol: Symbols) -> sympy.Expr:
    """The expression that :func:`text` wrote, over what ``symbol`` makes of names. Raises GraphTextError."""
    (expression,) = parse_list(source, symbol, 1)
    return expression


def parse_list(source: str, symbol: Symbols, count: int | None = None) -> list[sympy.Expr]:
    """Expressions between commas; ``:`` alone is None. Raises GraphTextError where there are not
    ``count``, which is 1 if it is given."""
    parts = _split(source)
    if count is not None and len(parts) != count:
        raise GraphTextError(f"expected one expression, found {source[:80]!r}")
    return [None if part == ":" else _parse(part, symbol) for part in parts]


def _split(source: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth = [""], 0
    for piece in re.split(r"([(),])", source):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if depth > _MAX_DEPTH:
            raise GraphTextError(f"{source[:80]!r} has more than {_MAX_DEPTH} brackets inside of each other")
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    stripped = [part.strip() for part in parts]
    return [] if stripped == [""] else stripped


def _parse(source: str, symbol: Symbols) -> sympy.Expr:
    try:
        if len(source) > _MAX_LENGTH:
            raise ValueError(f"an expression of {len(source)} characters")
        return _Reader(symbol).read(ast.parse(source, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise GraphTextError(f"expected an expression, found {source[:80]!r}: {reason}") from error


class _Reader:
    """Makes expressions of Python's syntax trees, node by node; nothing is simplified."""

    def __init__(self, symbol: Symbols):
        self._symbol = symbol

    def read(self, node: ast.expr) -> sympy.Expr:
        if isinstance(node, ast.Name):
            return self._symbol(node.id)
        if isinstance(node, ast.Constant):
            return _number(node.value)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _negative(self.read(node.operand))
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        raise ValueError(f"{type(node).__name__} is none of + - * / **, a call, a name or a number")

    def _binary(self, node: ast.BinOp) -> sympy.Expr:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            terms = self._terms(node)
            last_first = terms[-1].is_Number and not terms[0].is_Number
            return sympy.Add(*([terms[-1], *terms[:-1]] if last_first else terms), evaluate=False)
        if isinstance(node.op, (ast.Mult, ast.Div)):
            return _multiply(self._factors(node))
        if isinstance(node.op, ast.Pow):
            return _power(self.read(node.left), self.read(node.right))
        raise ValueError(f"operator {type(node.op).__name__} is none of + - * / **")

    def _terms(self, node: ast.expr) -> list[sympy.Expr]:
        rest: list[sympy.Expr] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            term = self.read(node.right)
            rest.append(_negative(term) if isinstance(node.op, ast.Sub) else term)
            node = node.left
        return [self.read(node), *reversed(rest)]

    def _factors(self, node: ast.expr) -> list[sympy.Expr]:
        """Factors in order; a divisor as a power, a quotient of integers in front as one number."""
        rest: list[tuple[sympy.Expr, bool]] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            rest.append((self.read(node.right), isinstance(node.op, ast.Div)))
            node = node.left
        minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        first = self.read(node.operand if minus and isinstance(node, ast.UnaryOp) else node)
        factors = [-first] if minus and first.is_Number else [sympy.Integer(-1), first] if minus else [first]
        for factor, below in reversed(rest):
            quotient = below and factor.is_Integer and len(factors) == 1 and factors[0].is_Integer
            if below and factor == 0:
                raise ValueError("division by zero")
            factors = [factors[0] / factor] if quotient else [*factors, _inverse(factor) if below else factor]
        return factors[1:] if factors[0] == 1 and rest[-1][1] and len(factors) > 1 else factors

    def _call(self, node: ast.Call) -> sympy.Expr:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise ValueError("a call has the form name(operand, ...)")
        name = node.func.id
        if name == "symbol" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
            return self._symbol(str(node.args[0].value))
        args = [self.read(a) for a in node.args]
        if not args and (name in _OWN or name == "load"):
            raise ValueError(f"{name} without operands")
        if name == "Float":
            return _precise(args)
        if name in _NUMBERS and not args:
            return _NUMBERS[name]
        if name == "Pow" and len(args) == 2:
            return _power(*args)
        if name in functions.CLASSES:
            return functions.CLASSES[name](*args)
        if name not in _OWN:
            raise ValueError(f"there is no function {name!r}")
        return _OWN[name](*args, evaluate=False)


def _number(value: object) -> sympy.Expr:
    if type(value) is int:
        return sympy.Integer(value)
    if type(value) is float and math.isfinite(value):
        return sympy.Float(value)
    raise ValueError(f"{value!r} is no number")


def _precise(args: Sequence[Any]) -> sympy.Expr:
    """A float of another precision than double: its value, or mantissa and exponent."""
    numbers = [int(a) if a.is_Integer else float(a) for a in args]
    if len(numbers) == 2:
        return sympy.Float(float(numbers[0]), precision=min(int(numbers[1]), _MAX_LENGTH))
    mantissa, exponent, precision = map(int, numbers)
    if abs(exponent) > _MAX_LENGTH or precision > _MAX_LENGTH:
        raise ValueError(f"Float with exponent {exponent} and precision {precision}")
    return sympy.Float((int(mantissa < 0), abs(mantissa), exponent, abs(mantissa).bit_length()), precision=precision)


def _inverse(expr: sympy.Expr) -> sympy.Expr:
    return sympy.Rational(1, expr) if expr.is_Integer else sympy.Pow(expr, -1, evaluate=False)


def _negative(expr: sympy.Expr) -> sympy.Expr:
    if expr.is_Number:
        return -expr
    if not expr.is_Mul:
        return sympy.Mul(-1, expr, evaluate=False)
    first, *rest = expr.args
    if not first.is_Number:
        return sympy.Mul(-1, first, *rest, evaluate=False)
    return _multiply(rest if first == -1 else [-first, *rest])


def _multiply(factors: Sequence[sympy.Expr]) -> sympy.Expr:
    if len(factors) == 1:
        return factors[0]
    return sympy.Mul(*factors, evaluate=any(f.is_Number for f in factors[1:]))


def _power(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if base.is_number and exponent.is_number:
        fits = exponent.is_Rational and abs(exponent.p) <= _MAX_POWER and exponent.q <= _MAX_POWER
        if not (fits and (not base.is_Integer or abs(base) < 1 << _MAX_POWER)):
            raise ValueError(f"a number to the power {str(exponent)[:20]}; expected at most {_MAX_POWER}")
    return sympy.Pow(base, exponent, evaluate=False)
