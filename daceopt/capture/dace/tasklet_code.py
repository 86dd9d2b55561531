"""The Python code of a tasklet as scalar expressions."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import dace
import sympy
from dace import dtypes
from dace.sdfg import nodes

from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types

_FLOATING = "exp log sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in _FLOATING.split()},
    **{"arc" + name[1:]: getattr(sympy, name) for name in _FLOATING.split() if name[0] == "a"},
    **{name: getattr(scalar, name) for name in "log1p log2 log10 expm1 exp2 hypot floor ceil trunc sign".split()},
    **{name: getattr(scalar, name) for name in "copysign erfc fmod isnan isinf maximum minimum".split()},
    "abs": scalar.absolute,
    "fabs": scalar.absolute,
    "absolute": scalar.absolute,
    "erf": sympy.erf,
    "sqrt": sympy.sqrt,
    "square": lambda x: x**2,
    "ceiling": scalar.ceil,
    "rint": scalar.round_even,
    "pow": scalar.power,
    "power": scalar.power,
    "atan2": scalar.atan2,
    "arctan2": scalar.atan2,
    "max": lambda *x: reduce(scalar.maximum, x),
    "min": lambda *x: reduce(scalar.minimum, x),
    "logical_and": scalar.logical_and,
    "logical_or": scalar.logical_or,
    "logical_not": scalar.logical_not,
    "logical_xor": scalar.logical_xor,
}
_COMPARISONS: dict[type, Callable[..., Any]] = {
    ast.Lt: scalar.lt,
    ast.LtE: scalar.le,
    ast.Gt: scalar.gt,
    ast.GtE: scalar.ge,
    ast.Eq: scalar.eq,
    ast.NotEq: scalar.ne,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Mod: scalar.pymod,
}
_BITWISE: dict[type, str] = {
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shift_left",
    ast.RShift: "shift_right",
}
# SymPy takes 0.0 for 0, whose product with an infinity is 0, and whose sign is none
_ZERO = scalar.cast(sympy.Integer(0), dace.float64)
_NUMBERS = {"inf": scalar.infinity, "nan": scalar.nan}


def expressions(
    tasklet: nodes.Tasklet, inputs: Mapping[str, object], names: Mapping[str, object], dtypes_of: Mapping[Any, Any]
) -> dict[str, sympy.Expr]:
    """What each output connector is, in terms of ``inputs`` (connector -> symbol) and ``names`` (parameters, sizes).

    ``dtypes_of``: types of the symbols. Python's meaning of operators counts (``%`` has the sign of its divisor), not
    that of the C++ which DaCe prints. Raises Unsupported, with the tasklet and the expression.
    """
    if tasklet.code.language != dtypes.Language.Python:
        language = tasklet.code.language.name
        raise Unsupported(f"tasklet {tasklet.label!r} is written in {language}; expected Python")
    reader = _Reader(tasklet, {**names, **inputs}, dtypes_of)
    for statement in tasklet.code.code:
        reader.statement(statement)
    if missing := [c for c in tasklet.out_connectors if c not in reader.assigned]:
        raise Unsupported(f"tasklet {tasklet.label!r} does not assign its output {missing[0]!r}")
    return {c: reader.known[c] for c in tasklet.out_connectors}


class _Reader:
    def __init__(self, tasklet: nodes.Tasklet, names: Mapping[str, object], dtypes_of: Mapping[Any, Any]):
        self._label, self.known, self._types = tasklet.label, dict(names), dtypes_of
        self.assigned: set[str] = set()

    def statement(self, node: ast.AST) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        targets, value = self._assignment(node)
        for target in targets:
            if not isinstance(target, ast.Name):
                raise self._refusal(node, "expected assignments to names; elements are chosen by memlets")
            self.known[target.id] = self.read(value)
            self.assigned.add(target.id)

    def _assignment(self, node: ast.AST) -> tuple[Sequence[ast.expr], ast.expr]:
        """The targets of a statement, and what they get."""
        if isinstance(node, ast.AugAssign):
            return [node.target], ast.BinOp(node.target, node.op, node.value)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return [node.target], node.value
        if isinstance(node, ast.Assign):
            return node.targets, node.value
        raise self._refusal(node, "expected assignments of expressions")

    def read(self, node: ast.expr) -> sympy.Expr:
        read: Callable[[Any], Any] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if read is None:
            raise self._refusal(node, "no scalar form is known")
        return read(node)

    # ---------------------------------------------------------------- expressions, by the name of their class

    def _constant(self, node: ast.Constant) -> sympy.Expr:
        return self._number(node, node.value)

    def _boolop(self, node: ast.BoolOp) -> sympy.Expr:
        join = scalar.logical_and if isinstance(node.op, ast.And) else scalar.logical_or
        return reduce(join, [self._truth(v) for v in node.values])

    def _ifexp(self, node: ast.IfExp) -> sympy.Expr:
        return scalar.select(self._truth(node.test), self.read(node.body), self.read(node.orelse))

    def _attribute(self, node: ast.Attribute) -> sympy.Expr:
        if node.attr not in _NUMBERS:
            raise self._refusal(node, "no scalar form is known")
        return _NUMBERS[node.attr]()

    def _number(self, node: ast.AST, value: object) -> sympy.Expr:
        if isinstance(value, bool):
            return scalar.eq(sympy.Integer(0), sympy.Integer(0 if value else 1))
        if isinstance(value, int):
            return sympy.Integer(value)
        if isinstance(value, float):
            special = value != value or value in (float("inf"), float("-inf"))
            if special:
                return scalar.nan() if value != value else scalar.infinity() * (1 if value > 0 else -1)
            return sympy.Float(value, 17) if value else _ZERO if math.copysign(1, value) > 0 else -_ZERO
        if hasattr(value, "item"):
            return self._number(node, value.item())
        raise self._refusal(node, "expected a number")

    def _name(self, node: ast.Name) -> sympy.Expr:
        if node.id not in self.known:
            raise self._refusal(node, "the name is no connector, parameter or size")
        return self.known[node.id]

    def _is_float(self, expr: sympy.Expr) -> bool:
        return types.is_float(scalar.dtype_of(expr, self._types)) or expr.has(sympy.Float)

    def _binop(self, node: ast.BinOp) -> sympy.Expr:
        a, b, kind = self.read(node.left), self.read(node.right), type(node.op)
        if kind is ast.Mult and 0 in (a, b) and (self._is_float(a) or self._is_float(b)):
            a, b = (_ZERO if x == 0 else x for x in (a, b))
        if kind in _ARITHMETIC:
            return _ARITHMETIC[kind](a, b)
        if kind is ast.Pow:
            return a**b if b.is_Integer and abs(int(b)) <= 64 else scalar.power(a, b)
        if kind in _BITWISE:
            return self._bitwise(_BITWISE[kind], a, b)
        whole = not (self._is_float(a) or self._is_float(b))
        if kind is ast.Div and whole:
            raise self._refusal(node, "a quotient of integers is whole in DaCe's C++ and not in Python; convert one")
        if kind is ast.Div:
            return a / b
        if kind is ast.FloorDiv and whole:
            return scalar.idiv(a - scalar.pymod(a, b), b)
        raise self._refusal(node, "no scalar form is known")

    def _bitwise(self, name: str, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        """Truths have forms of their own, but no shifts."""
        if "shift" not in name:
            name = f"{'logical' if types.is_bool(scalar.dtype_of(a, self._types)) else 'bit'}_{name}"
        return getattr(scalar, name)(a, b)

    def _unaryop(self, node: ast.UnaryOp) -> sympy.Expr:
        if isinstance(node.op, ast.Not):
            return scalar.logical_not(self._truth(node.operand))
        value = self.read(node.operand)
        if isinstance(node.op, ast.Invert):
            boolean = types.is_bool(scalar.dtype_of(value, self._types))
            return scalar.logical_not(value) if boolean else scalar.bit_not(value)
        return -value if isinstance(node.op, ast.USub) else value

    def _truth(self, node: ast.expr) -> sympy.Expr:
        value = self.read(node)
        return value if types.is_bool(scalar.dtype_of(value, self._types)) else scalar.ne(value, 0)

    def _compare(self, node: ast.Compare) -> sympy.Expr:
        terms = [self.read(v) for v in (node.left, *node.comparators)]
        conditions = [_COMPARISONS[type(op)](a, b) for op, a, b in zip(node.ops, terms, terms[1:])]
        return reduce(scalar.logical_and, conditions)

    def _call(self, node: ast.Call) -> sympy.Expr:
        name = ast.unparse(node.func)
        short = name.rpartition(".")[2]
        args = [self.read(a) for a in node.args]
        if node.keywords:
            raise self._refusal(node, "calls with names of arguments have no scalar form")
        if short in _FUNCTIONS:
            return _FUNCTIONS[short](*args)
        try:
            dtype = types.from_name({"int": "int64", "float": "float64", "bool_": "bool"}.get(short, short))
        except Unsupported:
            raise self._refusal(node, f"function {name!r} has no scalar form") from None
        return scalar.cast(args[0], dtype)

    def _subscript(self, node: ast.Subscript) -> sympy.Expr:
        """``array[i, j]`` of a connector that takes a whole array."""
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return scalar.load(self.read(node.value), *(self.read(i) for i in index))

    def _refusal(self, node: ast.AST, why: str) -> Unsupported:
        return Unsupported(f"tasklet {self._label!r}: {ast.unparse(node)!r}: {why}")
