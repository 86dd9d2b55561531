"""Kernels as values: iteration parameters, stages and their accesses, and the schedule of their loops.

A graph holds one in each :class:`daceopt.ir.kernel.kernel_node.KernelNode`; an edit puts another value in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import dace
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.data.arrays import Arrays
from daceopt.ir.kernel.tasklet import Assignment, check_order, eliminate_dead, free_symbols, fresh, symbol_like
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.symbols import param

REDUCTIONS = ("sum", "prod", "max", "min")
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Access:
    """One element (per iteration) of ``array``; ``index`` has an expression per dimension, None for the whole
    dimension."""

    array: str
    index: tuple[sympy.Expr | int | None, ...]
    wcr: str | None = None

    def subs(self, mapping: Mapping[sympy.Symbol, Dim]) -> Access:
        index = tuple(_subs(e, mapping) for e in self.index)
        return self if all(a is b for a, b in zip(index, self.index)) else Access(self.array, index, self.wcr)

    def params(self) -> frozenset[sympy.Symbol]:
        """Symbols that the index depends on."""
        return self._params

    @cached_property
    def _params(self) -> frozenset[sympy.Symbol]:
        expressions = [e for e in self.index if isinstance(e, sympy.Expr)]
        return frozenset(s for e in expressions for s in ((e,) if e.is_Symbol else e.free_symbols))


def _subs(expr: Dim, mapping: Mapping[sympy.Symbol, Dim]) -> Dim:
    if not isinstance(expr, sympy.Expr):
        return expr
    if expr.is_Symbol:
        return mapping.get(expr, expr)
    hits = {s: mapping[s] for s in expr.free_symbols if s in mapping}
    return dim(expr.xreplace(hits)) if hits else expr


@dataclass(frozen=True)
class Stage:
    """One tasklet over the iteration domain ``params``."""

    params: tuple[sympy.Symbol, ...]
    reads: Mapping[str, Access]
    writes: Mapping[str, Access]
    assignments: tuple[Assignment, ...]

    def reduced_params(self, connector: str) -> tuple[sympy.Symbol, ...]:
        """The parameters that the write ``connector`` reduces over."""
        access = self.writes[connector]
        return tuple(p for p in self.params if p not in access.params()) if access.wcr else ()

    @property
    def copy(self) -> tuple[Access, Access] | None:
        """What it reads and what it writes, where it does nothing but to store the one value that it reads."""
        if not len(self.reads) == len(self.writes) == len(self.assignments) == 1:
            return None
        ((connector, read),), (write,), (value,) = self.reads.items(), self.writes.values(), self.assignments
        return (read, write) if str(value.expr) == connector and write.wcr is None else None

    def arrays(self) -> set[str]:
        """All that it reads and writes."""
        return {a.array for a in (*self.reads.values(), *self.writes.values())}

    def with_writes(self, writes: Mapping[str, Access]) -> Stage:
        """The statement with these writes, of values that it has, in the place of its own, and what they need alone."""
        assignments = eliminate_dead(self.assignments, writes)
        used = {str(s) for s in free_symbols(assignments)}
        return Stage(self.params, {c: a for c, a in self.reads.items() if c in used}, writes, assignments)

    def writing_twice(self, connector: str, access: Access) -> Stage:
        """The statement, which writes what it writes at ``connector`` by ``access``, too."""
        value = next(a for a in self.assignments if str(a.symbol) == connector)
        twin = fresh(f"{connector}_l", (*self.reads, *self.writes, *(str(a.symbol) for a in self.assignments)))
        writes: dict[str, Access] = {}
        for c, other in self.writes.items():
            writes |= {c: other, twin: access} if c == connector else {c: other}
        copied = Assignment(symbol_like(value.symbol, twin), value.symbol, value.dtype)
        return replace(self, writes=writes, assignments=(*self.assignments, copied))

    def with_accesses(self, change: Callable[[Access], Access]) -> Stage:
        """The statement with each of its accesses changed."""
        reads, writes = ({c: change(a) for c, a in side.items()} for side in (self.reads, self.writes))
        return Stage(self.params, reads, writes, self.assignments)

    def subs(self, mapping: Mapping[sympy.Symbol, Dim], params: tuple[sympy.Symbol, ...] | None = None) -> Stage:
        """Replace parameters in the domain, accesses and scalar code; ``params`` gives the new domain if it is not one
        to one."""
        new = params if params is not None else tuple(mapping.get(p, p) for p in self.params)
        return Stage(
            new,
            {c: a.subs(mapping) for c, a in self.reads.items()},
            {c: a.subs(mapping) for c, a in self.writes.items()},
            tuple(_subs_assignment(a, mapping) for a in self.assignments),
        )


def _subs_assignment(assignment: Assignment, mapping: Mapping[sympy.Symbol, Dim]) -> Assignment:
    if assignment.free_symbols.isdisjoint(mapping):
        return assignment
    expr = _subs(assignment.expr, mapping)
    return Assignment(assignment.symbol, sympy.sympify(expr), assignment.dtype)


@dataclass(frozen=True)
class Kernel:
    """Loops over statements; docs/rooms/ir-kernels.md has the meaning of each field."""

    label: str
    extents: Mapping[sympy.Symbol, Dim]
    stages: Sequence[Stage]
    outer: tuple[sympy.Symbol, ...] = ()
    locals: Mapping[str, tuple[dace.typeclass, Shape]] = field(default_factory=dict)
    schedule: Any = None  # a schedule.Tree over the stages; None: no step has scheduled it
    serial: tuple[sympy.Symbol, ...] = ()  # loops in order around the stages that name them, in which locals are kept

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))

    @staticmethod
    def param(k: int) -> sympy.Symbol:
        return param(k)

    def bounds(self, p: sympy.Symbol) -> tuple[Dim, Dim | None]:
        """The largest extent of ``p``, and what a partial last tile leaves of it, which names other parameters."""
        extent = self.extents[p]
        if not getattr(extent, "free_symbols", set()) & self.extents.keys():
            return extent, None
        whole = [e for e in sympy.Min.make_args(extent) if not e.free_symbols & self.extents.keys()]
        rest = [e for e in sympy.Min.make_args(extent) if e not in whole]
        if len(whole) != 1 or not isinstance(extent, sympy.Min):
            raise Unsupported(f"the extent of {p} is {extent}; expected min(a size, what is left of one)")
        return dim(whole[0]), dim(sympy.Min(*rest, evaluate=False) if len(rest) > 1 else rest[0])

    def rename_locals_apart(self, arrays: Arrays) -> Kernel:
        """The same with names for its locals that no array of a graph has."""
        return self.over({old: arrays.fresh_name(old) for old in self.locals})

    def over(self, names: Mapping[str, str]) -> Kernel:
        """The same over other arrays, or locals: each is called what ``names`` says."""
        stages = [s.with_accesses(lambda a: replace(a, array=names.get(a.array, a.array))) for s in self.stages]
        return replace(self, stages=stages, locals={names.get(old, old): kind for old, kind in self.locals.items()})

    def without_dimensions(self, removed_axes: Mapping[str, Collection[int]]) -> Kernel:
        """The same with locals that lack these dimensions, of which each access has one element."""

        def others(array: str, items: tuple[_Item, ...]) -> tuple[_Item, ...]:
            return (
                tuple(e for k, e in enumerate(items) if k not in removed_axes[array])
                if array in removed_axes
                else items
            )

        stages = [s.with_accesses(lambda a: replace(a, index=others(a.array, a.index))) for s in self.stages]
        return replace(self, stages=stages, locals={n: (t, others(n, shape)) for n, (t, shape) in self.locals.items()})

    @property
    def is_tiled(self) -> bool:
        """Has it loops that run in order, or tiles that may be partial? Only its schedule says more then: statements
        are no longer independent loops over rectangles."""
        return bool(self.serial) or any(self.bounds(p)[1] is not None for p in self.extents)

    def most(self, params: Iterable[sympy.Symbol]) -> Dim:
        """Iterations over ``params`` together, partial tiles counted as whole ones."""
        return dim(prod(self.bounds(p)[0] for p in params))

    def kept_locals(self) -> frozenset[str]:
        """Locals with a value that lives on from one iteration of a serial loop to the next, or into or out of it:
        written by several stages, read before they are written, or by stages inside and outside of such a loop."""
        return self._kept

    @cached_property
    def _kept(self) -> frozenset[str]:
        return frozenset(self._find_kept())

    def _find_kept(self) -> Iterator[str]:
        reads = [{a.array for a in s.reads.values()} for s in self.stages]
        writes = [{a.array for a in s.writes.values()} for s in self.stages]
        for name in self.locals:
            users = [k for k in range(len(self.stages)) if name in reads[k] or name in writes[k]]
            places = {tuple(p for p in self.serial if p in self.stages[k].params) for k in users}
            reads_first = bool(users) and name in reads[users[0]]
            if len(places) > 1 or reads_first or sum(name in writes[k] for k in users) > 1:
                yield name

    def iteration(self, local: str) -> tuple[sympy.Symbol, ...]:
        """The parameters of which each iteration has a local of its own."""
        return self.outer if local in self.kept_locals() else (*self.outer, *self.serial)

    def forwarded_arrays(self) -> frozenset[str]:
        """Arrays of the graph that one stage writes and a later one reads."""
        return self._forwarded

    @cached_property
    def _forwarded(self) -> frozenset[str]:
        written = {a.array for s in self.stages for a in s.writes.values()} - self.locals.keys()
        return frozenset(a.array for s in self.stages for a in s.reads.values() if a.array in written)

    def reads(self) -> Sequence[Access]:
        """Accesses that read arrays of the graph which others write (no locals)."""
        return self._reads

    @cached_property
    def _reads(self) -> tuple[Access, ...]:
        own = {*self.locals, *self._forwarded}
        return tuple(a for s in self.stages for a in s.reads.values() if a.array not in own)

    def writes(self) -> Sequence[Access]:
        """Accesses that write arrays of the graph (no locals)."""
        return self._writes

    @cached_property
    def _writes(self) -> tuple[Access, ...]:
        return tuple(a for s in self.stages for a in s.writes.values() if a.array not in self.locals)

    def without_unit_loops(self) -> Kernel:
        """Loops of one iteration vanish, so that equal iteration spaces look equal."""
        unit: dict[sympy.Symbol, sympy.Integer] = {
            p: sympy.Integer(0) for p, n in self.extents.items() if n == 1 and p not in self.serial
        }
        if not unit:
            return self
        extents = {p: dim(_subs(n, unit)) for p, n in self.extents.items() if p not in unit}
        stages = [s.subs(unit, tuple(p for p in s.params if p not in unit)) for s in self.stages]
        outer = tuple(p for p in self.outer if p not in unit)
        return Kernel(self.label, extents, stages, outer, dict(self.locals), serial=self.serial)

    def normal_form(self, arrays: Arrays) -> Kernel:
        """The same as others read it: each statement in all loops around it, outermost first, with an index for each
        dimension of what it accesses. ValueError for assignments out of order."""
        many = len(self.stages) > 1 or bool(self.locals)
        outer = self.outer if many else self.stages[0].params
        extents: dict[sympy.Symbol, Dim] = {}
        stages = []
        for stage in self.stages:
            inner = [p for p in stage.params if p not in outer and p not in self.serial]
            params = (*outer, *(p for p in self.serial if p in stage.params), *inner)
            extents |= {p: dim(self.extents[p]) for p in params}
            stages.append(replace(stage.with_accesses(lambda a: _index(arrays, a)), params=params))
        used = dict.fromkeys(a.array for s in stages for a in (*s.reads.values(), *s.writes.values()))
        order = sorted(self.locals, key=[*used, *self.locals].index)  # in the order of use, whoever has put them there
        sizes = {name: (self.locals[name][0], self.locals[name][1] or (1,)) for name in order}
        serial = tuple(p for p in self.serial if p in extents)
        for stage in stages:
            check_order(self.label, stage.reads, stage.assignments, stage.writes)
        return Kernel(self.label, extents, stages, outer if many else (), sizes, self.schedule, serial)


def _index(arrays: Arrays, access: Access) -> Access:
    """With an index for each dimension of the array: none of a scalar."""
    if arrays.has(access.array) and not arrays.shape(access.array):
        return replace(access, index=())
    return replace(access, index=tuple(None if e is None else dim(e) for e in access.index or (0,)))
