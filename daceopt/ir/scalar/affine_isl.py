"""Integer expressions as isl's quasi-affine functions.

Sizes are isl parameters; a product of sizes, which is not affine, is a parameter of its own. That is safe: what isl
proves holds for all values of a parameter, so also for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import reduce

import islpy as isl
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.scalar import signs
from daceopt.ir.scalar.functions import idiv, pymod

CONTEXT = isl.DEFAULT_CONTEXT
_SET = isl.dim_type.set


def identifier(name: str) -> isl.Id:
    """The name as isl itself makes it from a text: one that Python makes is another one for isl."""
    kind = isl.dim_type.set
    return isl.Space.set_alloc(CONTEXT, 0, 0).set_tuple_name(kind, name).get_tuple_id(kind)


class SizeParameters:
    """The isl parameters that stand for sizes; ``loops`` are the symbols that are none."""

    def __init__(self, loops: frozenset[sympy.Symbol]):
        self.loops = loops
        self._names: dict[sympy.Symbol, str] = {}
        self.by_name: dict[str, sympy.Symbol] = {}

    def name(self, size: sympy.Expr) -> str:
        """The parameter's name: that of the symbol, or one made from the product."""
        name = self._names.get(size)
        if name is None:
            name = "".join(c if c.isalnum() else "_" for c in str(size))
            while name in self.by_name:
                name += "_"
            self._names[size], self.by_name[name] = name, size
        return name

    def possible(self, space: isl.Space) -> isl.Set:
        """All values that the parameters in ``space`` can have: sizes, and products of them, are 0 or more."""
        space = space.params()
        possible, local = isl.Set.universe(space), isl.LocalSpace.from_space(space)
        for axis in range(space.dim(isl.dim_type.param)):
            size = self.by_name.get(str(space.get_dim_name(isl.dim_type.param, axis)))
            if size is not None and signs.is_natural(sympy.expand(size)):
                bound = isl.Constraint.inequality_alloc(local).set_coefficient_val(isl.dim_type.param, axis, isl.Val(1))
                possible = possible.add_constraint(bound)
        return possible


class Functions:
    """Functions on the sets of one ``space``; ``values`` has the function of each symbol that is no size."""

    def __init__(self, sizes: SizeParameters, space: isl.Space, values: Mapping[sympy.Symbol, isl.PwAff]):
        self._sizes, self._space, self._values = sizes, space, values

    def of(self, expr: sympy.Expr) -> isl.PwAff:
        """``expr`` as a function. Raises Unsupported with the part that is not quasi-affine."""
        expr = sympy.sympify(expr)
        if expr in self._values:
            return self._values[expr]
        if expr.is_Integer:
            return isl.PwAff.val_on_domain(self._space.universe_set(), isl.Val(int(expr), CONTEXT))
        if expr.is_Symbol and expr not in self._sizes.loops:
            return self._parameter(expr)
        if expr.is_Symbol:
            raise Unsupported(f"{expr} is no loop around the place that names it")
        rule = next((rule for kind, rule in _RULES.items() if isinstance(expr, kind)), None)
        if rule is None:
            raise Unsupported(f"{expr} is not affine in the loops and sizes")
        return rule(self, expr)

    def _parameter(self, size: sympy.Expr) -> isl.PwAff:
        return isl.PwAff.param_on_domain_id(self._space.universe_set(), identifier(self._sizes.name(size)))

    def _sum(self, expr: sympy.Expr) -> isl.PwAff:
        return reduce(isl.PwAff.add, map(self.of, expr.args))

    def _product(self, expr: sympy.Expr) -> isl.PwAff:
        expanded = sympy.expand(expr)
        if not expanded.is_Mul and not expanded.is_Pow:
            return self.of(expanded)
        factor, rest = expanded.as_coeff_Mul()
        if factor != 1 and factor.is_Integer:
            return self.of(rest).scale_val(isl.Val(int(factor), CONTEXT))
        if factor != 1 or expr.free_symbols & self._sizes.loops:
            raise Unsupported(f"{expr} is not affine in the loops: a size multiplies one")
        return self._parameter(rest)

    def _floor(self, expr: sympy.Expr) -> isl.PwAff:
        above, below = sympy.together(expr.args[0]).as_numer_denom()
        return self._divide(above, below)

    def _quotient(self, expr: sympy.Expr) -> isl.PwAff:
        """Rounded towards 0, which is down for what is never negative."""
        above, below = expr.args
        if signs.is_natural(sympy.expand(above)):
            return self._divide(above, below)
        divisor = isl.PwAff.val_on_domain(self._space.universe_set(), self._divisor(below))
        return self.of(above).tdiv_q(divisor)

    def _divide(self, above: sympy.Expr, below: sympy.Expr) -> isl.PwAff:
        return self.of(above).scale_down_val(self._divisor(below)).floor()

    def _remainder(self, expr: sympy.Expr) -> isl.PwAff:
        return self.of(expr.args[0]).mod_val(self._divisor(expr.args[1]))

    def _divisor(self, below: sympy.Expr) -> isl.Val:
        if not (sympy.sympify(below).is_Integer and below > 0):
            raise Unsupported(f"a division by {below}; isl takes positive numbers")
        return isl.Val(int(below), CONTEXT)

    def _minimum(self, expr: sympy.Expr) -> isl.PwAff:
        return reduce(isl.PwAff.min, map(self.of, expr.args))

    def _maximum(self, expr: sympy.Expr) -> isl.PwAff:
        return reduce(isl.PwAff.max, map(self.of, expr.args))


_RULES: dict[type, Callable[[Functions, sympy.Expr], isl.PwAff]] = {
    sympy.Add: Functions._sum,
    sympy.Mul: Functions._product,
    sympy.Pow: Functions._product,
    sympy.floor: Functions._floor,
    idiv: Functions._quotient,
    pymod: Functions._remainder,
    sympy.Min: Functions._minimum,
    sympy.Max: Functions._maximum,
}


def functions_on(
    sizes: SizeParameters, space: isl.Space, names: Collection[sympy.Symbol]
) -> tuple[Functions, dict[sympy.Symbol, isl.PwAff]]:
    """Functions on ``space``, whose dimensions are the symbols ``names``."""
    local = isl.LocalSpace.from_space(space)
    values = {p: isl.PwAff.from_aff(isl.Aff.var_on_domain(local, _SET, axis)) for axis, p in enumerate(names)}
    return Functions(sizes, space, values), values


def within(points: isl.Set, of: Functions, value: isl.PwAff, bounds: Iterable[sympy.Expr]) -> isl.Set:
    """``points`` where ``value`` is 0 or more and below all of its bounds."""
    points = points.intersect(value.nonneg_set())
    return reduce(isl.Set.intersect, [value.lt_set(of.of(bound)) for bound in bounds], points)


def with_facts(points: isl.Set, of: Functions, facts: Iterable[sympy.Expr]) -> isl.Set:
    """``points`` for the sizes for which ``facts`` are 0 or more, as far as isl has them."""
    for fact in facts:
        with suppress(Unsupported):  # what is not said makes more points
            points = points.intersect(of.of(fact).nonneg_set())
    return points
