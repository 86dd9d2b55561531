"""What a graph takes for granted about sizes: expressions that are 0 or more in every call that it is for."""

from __future__ import annotations

import sympy

from daceopt.ir.graph.graph import Graph


def assume(graph: Graph, expression: sympy.Expr) -> bool:
    """Is ``expression`` 0 or more: for all sizes, or in all calls that ``graph`` is for from now on?

    False, and nothing changed, where it never is, and where it cannot be brought into the form that a call is checked
    for: a polynomial with integer coefficients.
    """
    sizes = graph.sizes
    if sizes.is_natural(expression):
        return True
    polynomial = _polynomial(sympy.sympify(expression))
    if polynomial is None or any(sizes.is_positive(-e) for e in (expression, polynomial)):
        return False
    if not sizes.is_natural(polynomial):
        graph.assumptions.append(polynomial)
    return True


def holds(graph: Graph, expression: sympy.Expr) -> bool:
    """Is ``expression`` 0 or more in every call that ``graph`` is for already?"""
    return graph.sizes.is_natural(expression)


def _polynomial(expression: sympy.Expr) -> sympy.Expr | None:
    """A polynomial whose being 0 or more means that ``expression`` is: the same, but for floors."""
    expression = sympy.expand(expression)
    for part in expression.atoms(sympy.floor):
        (inner,), factor = part.args, expression.coeff(part)
        if not factor.is_Rational or expression.coeff(part, 0).has(part):
            return None
        # floor(n / d) is n / d at most, and (n - d + 1) / d at least
        down = 0 if factor < 0 else 1 - 1 / sympy.fraction(sympy.together(inner))[1]
        expression = sympy.expand(expression.xreplace({part: inner - down}))
    if not expression.free_symbols:
        return expression
    try:
        polynomial = sympy.Poly(expression, *sorted(expression.free_symbols, key=str))
    except sympy.PolynomialError:
        return None
    cleared = polynomial.clear_denoms()[1]
    return cleared.as_expr() if cleared.domain.is_ZZ or all(c.is_Integer for c in cleared.coeffs()) else None
