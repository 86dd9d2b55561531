"""Algebra that is safe over the type's whole range: functions of one argument that share a single exponential.

With ``e = exp(minimum(x, c))``, where from ``c`` on ``1 + exp(-x)`` rounds to 1 (20 in float32, 40 in float64):

- ``sigmoid(x) = e / (1 + e)``
- ``tanh(softplus(x)) = n / (n + 2)`` with ``n = e * (e + 2)``
- ``softplus(x) = log1p(e)`` below ``c`` and ``x`` above it

``minimum`` keeps NaN; at -inf ``e`` is 0 and at +inf all three saturate, exactly as the functions themselves do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dace
import sympy

from daceopt.ir.kernel.tasklet import Assignment, Assignments, fresh
from daceopt.ir.scalar import scalar, types

_SATURATION = {"float32": 20, "float64": 40}


def simplify(assignments: Sequence[Assignment], types_of: Mapping[sympy.Symbol, types.DType]) -> Assignments:
    """Rewrite by the rules above, looking through assignments. ``types_of``: dtypes of the free symbols.

    Unused assignments may remain; the order stays SSA.
    """
    return _Rewriter(assignments, types_of).run()


class _Rewriter:
    def __init__(self, assignments: Sequence[Assignment], types_of: Mapping[sympy.Symbol, types.DType]):
        self._assignments = assignments
        self._assignment_of = {a.symbol: a for a in assignments}
        self._types = dict(types_of) | {a.symbol: a.dtype for a in assignments}
        self._infer = scalar.Types(self._types)
        self._names_in_use = {str(s) for s in self._types}
        self._symbols: dict[tuple[Any, str], Any] = {}
        self._out: list[Assignment] = []

    def run(self) -> Assignments:
        for a in self._assignments:
            expr = self._rewrite(a.expr)
            self._out.append(Assignment(a.symbol, expr, a.dtype))
        return tuple(self._out)

    def _rewrite(self, expr: sympy.Expr) -> sympy.Expr:
        if not expr.free_symbols:
            return expr  # a number takes the type of its context, which a shared one does not know
        inner = self._softplus_of(expr.args[0]) if isinstance(expr, sympy.tanh) else None
        if inner is not None:
            return self._tanh_softplus(inner)
        inner = self._softplus_of(expr)
        if inner is not None:
            return self._softplus(inner)
        if isinstance(expr, scalar.sigmoid):
            return self._sigmoid(expr.args[0])
        args = [self._rewrite(a) for a in expr.args]
        return expr if all(a is b for a, b in zip(args, expr.args, strict=True)) else expr.func(*args)

    def _softplus_of(self, expr: sympy.Expr) -> sympy.Expr | None:
        """``x`` where ``expr`` is softplus(x), log(1 + exp(x)) or log1p(exp(x)), directly or by assignment."""
        if expr.is_Symbol:
            a = self._assignment_of.get(expr)
            inner = None if a is None else self._softplus_of(a.expr)
            if a is None or inner is None or not types.is_float(a.dtype):
                return None
            return inner if a.dtype == self._infer.strong(a.expr, a.dtype) else None
        if isinstance(expr, scalar.softplus):
            return expr.args[0]
        if isinstance(expr, scalar.log1p) and isinstance(expr.args[0], sympy.exp):
            return expr.args[0].args[0]
        if isinstance(expr, sympy.log) and expr.args[0].is_Add and len(expr.args[0].args) == 2:
            one, power = expr.args[0].args
            return power.args[0] if one == 1 and isinstance(power, sympy.exp) else None
        return None

    def _tanh_softplus(self, x: sympy.Expr) -> sympy.Expr:
        e = self._exponential(x)
        n = self._share("n", e * (e + 2), self._float_type(x))
        return self._share("q", n / (n + 2), self._float_type(x))

    def _sigmoid(self, x: sympy.Expr) -> sympy.Expr:
        e = self._exponential(x)
        return self._share("s", e / (1 + e), self._float_type(x))

    def _softplus(self, x: sympy.Expr) -> sympy.Expr:
        e = self._exponential(x)
        x = self._rewrite(x)
        limit = _SATURATION[types.name_of(self._float_type(x))]
        return scalar.select(scalar.gt(x, limit), x, scalar.log1p(e))

    def _float_type(self, x: sympy.Expr) -> types.DType:
        dtype = self._infer.strong(x, dace.float32)
        return dtype if types.is_float(dtype) else dace.float32

    def _exponential(self, x: sympy.Expr) -> sympy.Expr:
        dtype = self._float_type(x)
        limit = _SATURATION[types.name_of(dtype)]
        return self._share("e", sympy.exp(scalar.minimum(self._rewrite(x), limit)), dtype)

    def _share(self, hint: str, expr: sympy.Expr, dtype: types.DType) -> sympy.Expr:
        """The symbol assigned ``expr``, made at its first use.

        Quotients get symbols of their own: merged into a larger product, their numerators would overflow.
        """
        key = (expr, types.name_of(dtype))
        if key not in self._symbols:
            self._symbols[key] = self._assign(hint, expr, dtype)
        return self._symbols[key]

    def _assign(self, hint: str, expr: sympy.Expr, dtype: types.DType) -> sympy.Expr:
        symbol = scalar.symbol(fresh(hint, self._names_in_use), dtype)
        self._names_in_use.add(str(symbol))
        self._types[symbol] = dtype
        self._out.append(Assignment(symbol, expr, dtype))
        return symbol
