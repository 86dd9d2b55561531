"""Accesses as linear functions of the loop parameters: the form in which loops are merged, split and ordered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import sympy

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.access.dataflow import walk
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import types
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.digits import as_digit, digit
from daceopt.ir.scalar.dims import Dim, dim, hint, row_major
from daceopt.ir.scalar.functions import idiv, pymod
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Do, Param, Tree

_MOST_POINTS = 1 << 14  # of a write whose elements are told apart one by one


@dataclass(frozen=True)
class KernelBuffer:
    """Memory that a kernel is given (an array of the graph from ``offset`` on) or that lives inside it (``local``)."""

    array: str
    offset: Dim
    dtype: types.DType
    local: bool = False


@dataclass(frozen=True)
class Reference:
    """The element ``sum(steps[p] * p) + rest`` of ``buffer``; ``rest`` is not linear in the parameters it names.

    ``whole`` has (extent, stride) of the dimensions left open for ``load``; ``wcr`` is the reduction of a write.
    """

    buffer: KernelBuffer
    steps: tuple[tuple[Param, Dim], ...]
    rest: Dim = 0
    whole: tuple[tuple[Dim, Dim], ...] = ()
    wcr: str | None = None

    def step(self, p: Param) -> Dim | None:
        """Elements between neighbours along ``p``; None where the element does not depend on ``p``."""
        return next((s for q, s in self.steps if q == p), None)

    def params(self) -> set[Param]:
        """All parameters that the element depends on."""
        return {p for p, _ in self.steps} | getattr(self.rest, "free_symbols", set())

    def at(self, index: Mapping[Param, Dim], loops: frozenset[Param]) -> Reference:
        """The same element in the parameters ``loops``; ``index`` has the value of each of the statement's parameters.

        Digits of one loop that the element steps through as through one become that loop's parameter again.
        """
        linear: dict[Param, Dim] = {}
        digits: dict[sympy.Expr, list[tuple[Dim, Dim | None, Dim]]] = {}
        rest: Dim = dim(self.rest.xreplace(dict(index))) if isinstance(self.rest, sympy.Expr) else self.rest
        for p, step in self.steps:
            value = index[p]
            if value == p:
                linear[p] = dim(linear.get(p, 0) + step)
                continue
            for part, factor in _terms(value):
                x, divisor, radix = as_digit(part)
                digits.setdefault(x, []).append((divisor, radix, dim(step * factor)))
        for x, parts in digits.items():
            for value, step in _join(x, parts):
                form = affine(value, loops)
                rest = dim(rest + (form.constant + form.opaque) * step)
                for q, factor in form.terms:
                    linear[q] = dim(linear.get(q, 0) + factor * step)
        return replace(self, steps=tuple(linear.items()), rest=rest)


def _terms(value: Dim) -> list[tuple[sympy.Expr, int]]:
    """``(digit, factor)`` of the multiples of digits in a sum, and what else it adds up; a value that is none, once."""
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(value)] if isinstance(value, sympy.Add) else []
    digits = [(part, int(n)) for n, part in terms if isinstance(part, (idiv, pymod)) and n.is_Integer]
    rest = value - sum((n * part for part, n in digits), sympy.S.Zero) if digits else value
    return [*digits, (rest, 1)]


def _join(x: Dim, parts: list[tuple[Dim, Dim | None, Dim]]) -> list[tuple[sympy.Expr, Dim]]:
    """``(value, step)`` of digits of ``x``, neighbours put together where one step leads through both."""
    digits: list[tuple[Dim, Dim | None, Dim]] = []
    for divisor, radix, step in sorted(parts, key=lambda part: _magnitude(part[0])):
        below = digits[-1] if digits else None
        if below is not None and _follows(below, divisor, step):
            first, inner_radix, inner = below
            digits[-1] = (first, None if radix is None or inner_radix is None else dim(inner_radix * radix), inner)
        else:
            digits.append((divisor, radix, step))
    return [(digit(x, divisor, radix), step) for divisor, radix, step in digits]


def _follows(below: tuple[Dim, Dim | None, Dim], divisor: Dim, step: Dim) -> bool:
    first, radix, inner = below
    return radix is not None and same(divisor, first * radix) and same(step, inner * radix)


def _magnitude(divisor: Dim) -> tuple[int, Dim]:
    """Divisors in ascending order: each is a multiple of those before it, so it has at least their factors."""
    if isinstance(divisor, int):
        return 0, divisor
    return 1 + sum(1 for f in sympy.Mul.make_args(divisor) if f.free_symbols), abs(hint(divisor))


def same_element(a: Reference, b: Reference) -> bool:
    """True when both name the same element in every iteration."""
    return a.buffer == b.buffer and dict(a.steps) == dict(b.steps) and a.rest == b.rest and a.whole == b.whole


def resolve(graph: Graph, kernel: Kernel, access: Access, params: frozenset[Param]) -> Reference:
    """The reference of ``access``: views are followed to their memory, constants go into the buffer's offset."""
    if access.array in kernel.locals:
        dtype, shape = kernel.locals[access.array]
        strides = row_major(shape)
        at, whole, _ = walk(access.index, strides, params)
        buffer, rest = KernelBuffer(access.array, 0, dtype, True), dim(at.opaque + at.constant)
    else:
        array, start = graph.root(access.array)
        shape, strides = graph.shape(access.array), graph.strides(access.array)
        at, whole, _ = walk(access.index, strides, params)
        buffer, rest = KernelBuffer(array, dim(start + at.constant), graph.dtype(access.array)), at.opaque
    return Reference(buffer, at.terms, rest, tuple((shape[k], strides[k]) for k in whole), access.wcr)


def check_writes(references: Mapping[str, Reference], extents: Mapping[Param, Dim], label: str) -> None:
    """Raise ``Unsupported`` for a write of a whole dimension, which has no meaning, and for one that reaches an element
    from several iterations, unless it reduces over a parameter that it does not depend on.
    """
    for connector, reference in references.items():
        if reference.whole:
            raise Unsupported(f"kernel {label}: write {connector} of {reference.buffer.array} leaves a dimension open")
        if _overlaps(reference, extents):
            raise Unsupported(
                f"kernel {label}: write {connector} reaches elements of {reference.buffer.array} from several "
                f"iterations (steps {[s for _, s in reference.steps]}); add them with IndexAdd, or reduce what is read"
            )


def check_overlaps(graph: Graph, kernel: Kernel) -> None:
    """Raise IllegalSchedule for a statement that stores into an element of the graph in several iterations."""
    params = frozenset(kernel.extents)
    for stage in kernel.stages:
        for connector, access in stage.writes.items():
            if access.array in kernel.locals or access.wcr is not None:
                continue
            free = [p for p in stage.params if p not in {*access.params(), *kernel.serial} and kernel.extents[p] != 1]
            if free or _overlaps(resolve(graph, kernel, access, params), kernel.extents):
                over = f", those of {free[0]}," if free else ""
                raise IllegalSchedule(
                    f"kernel {kernel.label}: several iterations{over} store {connector} into the same element of "
                    f"{access.array}; expected one, or a reduction"
                )


def _overlaps(reference: Reference, extents: Mapping[Param, Dim]) -> bool:
    """Do two iterations surely meet? Strides that are sizes are those of an array, whose elements stand apart."""
    steps = [(abs(s), extents[p]) for p, s in reference.steps if isinstance(s, int) and isinstance(extents[p], int)]
    if len(steps) < len(reference.steps) or reference.rest != 0:
        return False
    loops = sorted((s, int(n)) for s, n in steps if n != 1)
    reach, nested = 0, True  # nested: each step leads beyond all that the smaller ones reach
    for step, extent in loops:
        nested &= step > reach
        reach += step * (extent - 1)
    count = prod(n for _, n in loops)
    if nested or count == 0:
        return False
    return count > reach + 1 or (count <= _MOST_POINTS and len(_points(loops)) < count)


def _points(loops: Iterable[tuple[int, int]]) -> set[int]:
    points = {0}
    for step, extent in loops:
        points = {p + step * k for p in points for k in range(extent)}
    return points


@dataclass(frozen=True)
class StatementInstance:
    """One instance of a statement with its accesses in the parameters of the loops around it."""

    statement: int
    reads: dict[str, Reference]
    writes: dict[str, Reference]
    assignments: tuple[Assignment, ...]

    def references(self) -> list[Reference]:
        return [*self.reads.values(), *self.writes.values()]


def resolve_all(graph: Graph, kernel: Kernel, tree: Tree) -> dict[int, StatementInstance]:
    """Statement -> its instance in ``tree``. Raises ``Unsupported`` for writes without a meaning."""
    params = frozenset(kernel.extents)
    loops = frozenset(loop.param for loop in schedule.loops(tree))
    return {do.statement: _body(graph, kernel, do, params, loops) for do in schedule.dos(tree)}


def _body(graph: Graph, kernel: Kernel, do: Do, params: frozenset[Param], loops: frozenset[Param]) -> StatementInstance:
    stage = kernel.stages[do.statement]
    index = dict(zip(stage.params, do.index, strict=True))
    reads = {c: resolve(graph, kernel, a, params) for c, a in stage.reads.items()}
    writes = {c: resolve(graph, kernel, a, params) for c, a in stage.writes.items()}
    check_writes(writes, kernel.extents, kernel.label)
    changed = {p: e for p, e in index.items() if p != e}
    return StatementInstance(
        do.statement,
        {c: r.at(index, loops) for c, r in reads.items()},
        {c: r.at(index, loops) for c, r in writes.items()},
        tuple(a if a.free_symbols.isdisjoint(changed) else a.subs(changed) for a in stage.assignments),
    )
