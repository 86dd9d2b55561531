"""Which instances of a kernel's statements there are, and which of them the loops of a schedule run, as isl's sets."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import reduce

import islpy as isl
import sympy

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.affine_isl import (
    CONTEXT,
    Functions,
    SizeParameters,
    functions_on,
    identifier,
    with_facts,
    within,
)
from daceopt.ir.scalar.digits import as_digit, digit
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.functions import pymod
from daceopt.ir.schedule.guards import Restricted, restrict_by_guards, split_merged
from daceopt.ir.schedule.schedule import Do, Loop, Param, Tree

_SET, _OUT = isl.dim_type.set, isl.dim_type.out
_WHERE = {
    "<": isl.PwAff.lt_set,
    "<=": isl.PwAff.le_set,
    ">": isl.PwAff.gt_set,
    ">=": isl.PwAff.ge_set,
    "==": isl.PwAff.eq_set,
}


class Domains:
    """The instances of each statement, as isl's sets."""

    def __init__(self, graph: Graph | None, kernel: Kernel, loops: Iterable[Loop] = ()):
        self.kernel = kernel
        self.sizes = SizeParameters(frozenset(kernel.extents) | {loop.param for loop in loops})
        self._assumed = [] if graph is None else graph.assumptions
        self._instances: dict[int, tuple[isl.Set, Functions, dict[sympy.Symbol, isl.PwAff]]] = {}

    def functions(self, k: int) -> tuple[isl.Set, Functions, dict[sympy.Symbol, isl.PwAff]]:
        """The domain of statement ``k``, what makes functions on it, and those of its parameters."""
        if k not in self._instances:
            self._instances[k] = self._functions(k)
        return self._instances[k]

    def _functions(self, k: int) -> tuple[isl.Set, Functions, dict[sympy.Symbol, isl.PwAff]]:
        params = self.kernel.stages[k].params
        space = isl.Space.set_alloc(CONTEXT, 0, len(params)).set_tuple_id(_SET, identifier(f"S{k}"))
        for axis, p in enumerate(params):
            space = space.set_dim_id(_SET, axis, identifier(str(p)))
        of, values = functions_on(self.sizes, space, params)
        domain = space.universe_set()
        for p in params:
            # one bound after the other: the set stays convex, and its bounds can be read off again
            domain = within(domain, of, values[p], sympy.Min.make_args(sympy.sympify(self.kernel.extents[p])))
        return with_facts(domain, of, self._assumed), of, values

    def domain(self, k: int) -> isl.Set:
        """The instances of statement ``k``."""
        return self.functions(k)[0]

    def all(self) -> isl.UnionSet:
        """The instances of all statements."""
        sets = [isl.UnionSet.from_set(self.domain(k)) for k in range(len(self.kernel.stages))]
        return reduce(isl.UnionSet.union, sets)


# ---------------------------------------------------------------- what the loops run


@dataclass(frozen=True)
class _Column:
    """One member of a loop's band: the loop itself, or one of the digits that its value is made of."""

    symbol: sympy.Symbol
    bounds: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class _Instance:
    """A statement in the loops around it, and the columns of each of them."""

    do: Do
    loops: tuple[Loop, ...]
    columns: tuple[tuple[_Column, ...], ...]
    index: tuple[sympy.Expr, ...]  # the statement's parameters in the columns' symbols
    conditions: tuple[sympy.Basic, ...]


def _instance(kernel: Kernel, reached: Restricted) -> _Instance:
    do, groups = split_merged(reached.do, reached.loops, only_open=True)
    stage = kernel.stages[do.statement]
    if len(do.index) != len(stage.params):
        raise IllegalSchedule(f"s{do.statement} has {len(stage.params)} parameters; found {len(do.index)} values")
    index, columns = list(do.index), []
    for loop, group in zip(reached.loops, groups):
        if len(group) > 1:
            columns.append(tuple(_Column(n.param, (n.extent,)) for n in group))
            continue
        digits = _symbolic_digits(kernel, do, loop)
        symbols = [sympy.Dummy(f"{loop.param}_{axis}") for axis, _ in digits]
        for symbol, (axis, _) in zip(symbols, digits):
            index[axis] = symbol
        plain = _Column(loop.param, tuple(b for b in (loop.extent, loop.rest) if b is not None))
        columns.append(tuple(_Column(s, (n,)) for s, (_, n) in zip(symbols, digits)) or (plain,))
    for loop, members in zip(reached.loops, columns):
        if len(members) > 1 and reached.starts.get(loop.param, 0) != 0:
            raise Unsupported(f"{loop.param} counts from {reached.starts[loop.param]} through digits of open extents")
    return _Instance(do, reached.loops, tuple(columns), tuple(index), reached.conditions)


def _symbolic_digits(kernel: Kernel, do: Do, loop: Loop) -> list[tuple[int, Dim]]:
    """(axis, extent) of the parameters that ``loop`` walks as one where a size parts them, the outermost first."""
    params = kernel.stages[do.statement].params
    digits = [(*as_digit(e)[1:], axis) for axis, e in enumerate(do.index) if as_digit(e)[0] == loop.param]
    if all(isinstance(d, int) and (r is None or isinstance(r, int)) for d, r, _ in digits):
        return []
    symbolic: list[tuple[int, Dim]] = []
    total: Dim = 1
    while digits:
        part = next((d for d in digits if same(d[0], total)), None)
        if part is None:
            raise Unsupported(f"s{do.statement}: the digits of {loop.param} do not follow one another")
        digits.remove(part)
        extent = kernel.extents[params[part[2]]]
        symbolic.insert(0, (part[2], extent))
        total = dim(total * extent)
    if loop.rest is not None or not same(total, loop.extent):
        raise Unsupported(f"{loop.param} walks {total} values as one and takes {loop.extent}, which is not affine")
    return symbolic


def _runs(instance: _Instance, domains: Domains) -> isl.Map:
    """{ [values of the columns] -> S[parameters] }: what the loops run."""
    columns = [c for group in instance.columns for c in group]
    space = isl.Space.set_alloc(CONTEXT, 0, len(columns))
    of, values = functions_on(domains.sizes, space, [c.symbol for c in columns])
    points = space.universe_set()
    for k, c in enumerate(columns):
        outer = {other.symbol: values[other.symbol] for other in columns[:k]}
        points = within(points, Functions(domains.sizes, space, outer), values[c.symbol], c.bounds)
    for condition in instance.conditions:
        points = points.intersect(where(of, condition))
    relation = isl.Map.from_domain(points)
    for value in instance.index:
        relation = relation.flat_range_product(isl.Map.from_pw_aff(of.of(value)))
    return relation.set_tuple_id(_OUT, identifier(f"S{instance.do.statement}"))


def where(of: Functions, condition: sympy.Basic) -> isl.Set:
    """The points at which a relation holds."""
    return _WHERE[condition.rel_op](of.of(condition.lhs), of.of(condition.rhs))


def _check_once(runs: isl.Map, domain: isl.Set, sizes: SizeParameters, label: str) -> isl.Map:
    """``runs`` for the sizes that there are. Raises IllegalSchedule unless each instance runs, and once."""
    for space in (runs.get_space(), domain.get_space()):
        domain = domain.intersect_params(sizes.possible(space))
    runs = runs.intersect_params(domain.params())
    for wrong, reason in ((domain.subtract(runs.range()), "never runs"), (runs.range().subtract(domain), "runs")):
        if not wrong.is_empty():
            raise IllegalSchedule(f"schedule of {label} {reason} {_example(wrong)}; expected all of {domain}")
    if not runs.is_injective():
        raise IllegalSchedule(f"schedule of {label} runs instances of {domain} more than once")
    return runs


def _example(points: isl.Set) -> str:
    return str(points.sample_point())


# ---------------------------------------------------------------- the index inverted


def loop_values(domains: Domains, do: Do, around: Several[Tree]) -> list[list[isl.PwAff]]:
    """The value of each loop around ``do`` in the statement's parameters, for each member of the loop's band.

    Raises IllegalSchedule, with an instance, where loops and guards do not run each instance once, and Unsupported
    where that is not decided.
    """
    reached = restrict_by_guards(do, around)
    instance = _instance(domains.kernel, reached)
    domain, of, _ = domains.functions(do.statement)
    runs = _check_once(_runs(instance, domains), domain, domains.sizes, domains.kernel.label)
    params = domains.kernel.stages[instance.do.statement].params
    solved = _solve(instance, dict(zip(instance.index, params)), domains)
    columns = [c for group in instance.columns for c in group]
    flat = [of.of(solved.get(c.symbol, sympy.S.Zero)) for c in columns]
    if not _inverts(flat, runs, domain):
        flat = _inverse(runs, len(columns))
    values = iter(flat)
    groups = [[next(values) for _ in group] for group in instance.columns]
    starts = [reached.starts.get(loop.param, 0) for loop in instance.loops]
    return [[v.add(of.of(start)) if start != 0 else v for v in group] for group, start in zip(groups, starts)]


def _solve(instance: _Instance, params: dict[sympy.Expr, Param], domains: Domains) -> dict[sympy.Symbol, sympy.Expr]:
    """The value of each column in the statement's parameters, digit by digit."""
    bases: dict[sympy.Expr, sympy.Expr] = {}
    for value, p in params.items():
        base, divisor, _ = as_digit(value)
        bases[base] = bases.get(base, sympy.S.Zero) + divisor * p
    symbols = frozenset(c.symbol for group in instance.columns for c in group)
    solution: dict[sympy.Symbol, sympy.Expr] = {}
    for base, rest in bases.items():
        digits = affine(base, symbols).terms
        for symbol, step in sorted(digits, key=lambda item: -item[1] if isinstance(item[1], int) else 0):
            solution[symbol] = digit(rest, step, None)
            rest = pymod(rest, step)
    return solution


def _inverts(values: list[isl.PwAff], runs: isl.Map, domain: isl.Set) -> bool:
    inverse = isl.Map.from_domain(domain)
    for value in values:
        inverse = inverse.flat_range_product(isl.Map.from_pw_aff(value))
    return bool(inverse.is_equal(runs.reverse()))


def _inverse(runs: isl.Map, count: int) -> list[isl.PwAff]:
    """The same by isl, which finds a form for everything, but not a short one."""
    back = runs.reverse()
    alone = [back.project_out(_OUT, k + 1, count - k - 1).project_out(_OUT, 0, k) for k in range(count)]
    return [isl.PwMultiAff.from_map(one).get_pw_aff(0) for one in alone]
