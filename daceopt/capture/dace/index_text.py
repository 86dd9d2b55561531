"""DaCe's symbolic expressions over a graph's own symbols."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from dace import symbolic

from daceopt.errors import Unsupported
from daceopt.ir.scalar.dims import Dim, dim


def to_dim(expr: sympy.Basic, names: Mapping[str, object], where: str) -> Dim:
    """``expr`` with each symbol replaced by what ``names`` has for its name. Raises Unsupported for an unknown one."""
    if isinstance(expr, symbolic.SymExpr):
        expr = expr.expr
    expr = sympy.sympify(expr)
    if unknown := sorted(str(s) for s in expr.free_symbols if str(s) not in names):
        raise Unsupported(
            f"{where}: symbol {unknown[0]!r} in {expr} is no extent of an argument; what the program computes "
            f"itself is not supported, a size of its own is given by from_sdfg(..., sizes={{{unknown[0]!r}: ...}})"
        )
    expr = expr.subs({s: names[str(s)] for s in expr.free_symbols}, simultaneous=True)
    expr = expr.replace(symbolic.int_floor, lambda a, b: sympy.floor(a / b))
    expr = expr.replace(symbolic.int_ceil, lambda a, b: sympy.ceiling(a / b))
    return dim(sympy.expand(expr))
