"""The part of an array that one iteration of some loops accesses, as a box."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass

import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.sizes import ALL_SIZES

Index = Several["Dim | None"]


@dataclass(frozen=True)
class Box:
    """Elements ``starts[d] <= e < starts[d] + extents[d]`` of an array; ``starts`` in the loops around, ``extents``
    numbers or sizes. ``bounds``: the extents where the array may end before the box does."""

    starts: tuple[Dim, ...]
    extents: Shape
    bounds: Shape

    @property
    def open(self) -> list[int]:
        """The dimensions in which it has not just one element: more, or, behind the array's end, none."""
        return [d for d, bound in enumerate(self.bounds) if bound != 1]

    def inside(self, index: Index) -> tuple[Dim, ...]:
        """The place in the box of an element of the array."""
        return tuple(dim(sympy.expand(sympy.sympify(index[d]) - self.starts[d])) for d in self.open)

    def element(self, place: Mapping[int, Dim]) -> tuple[Dim, ...]:
        """The element of the array at ``place``, which has a number for each open dimension."""
        return tuple(dim(start + place.get(d, 0)) for d, start in enumerate(self.starts))


def box_of(kernel: Kernel, accesses: Iterable[Access], shape: Shape, outer: Collection[sympy.Symbol]) -> Box:
    """What ``accesses`` of one array of ``shape`` reach while the loops ``outer`` stand still.

    Raises IllegalSchedule, with the index, for run-time indices, for places that are not affine in the loops inside,
    and for accesses that do not stay at the same distance from one another.
    """
    listed = list(accesses)
    starts, extents, bounds = [], [], []
    inside = ALL_SIZES.inside({p: kernel.bounds(p)[0] for p in outer})
    for d, whole in enumerate(shape):
        reached = [_span(kernel, a, d, outer) for a in listed]
        first = reached[0][0]
        apart = [sympy.expand(start - first) for start, _ in reached]
        if not all(a.is_Integer for a in apart):
            array, places = listed[0].array, " and ".join(str(start) for start, _ in reached)
            raise IllegalSchedule(f"dimension {d} of {array} is accessed at {places}: they are no box of one extent")
        start = sympy.expand(first + min(apart))
        extent = dim(_largest([a - min(apart) + count for a, (_, count) in zip(apart, reached)]))
        if not inside.is_natural(start):
            before = "which may be before the array"
            raise IllegalSchedule(f"the box of {listed[0].array} begins at {start} in dimension {d}, {before}")
        starts.append(start)
        extents.append(extent)
        bounds.append(extent if inside.is_natural(whole - start - extent) else _upper_bound(extent, dim(whole - start)))
    return Box(tuple(starts), tuple(extents), tuple(bounds))


def _upper_bound(extent: Dim, left: Dim) -> Dim:
    return sympy.Min(extent, left, evaluate=False)


def _largest(counts: list[sympy.Expr]) -> sympy.Expr:
    largest = counts[0]
    for n in counts[1:]:
        if ALL_SIZES.is_natural(largest - n):
            continue
        if not ALL_SIZES.is_natural(n - largest):
            raise IllegalSchedule(f"a box of {largest} or {n} elements; expected extents that can be compared")
        largest = n
    return largest


def _span(kernel: Kernel, access: Access, d: int, outer: Collection[sympy.Symbol]) -> tuple[Dim, Dim]:
    """``(first, count)`` of the places that one access reaches in a dimension."""
    value = access.index[d]
    if value is None:
        raise IllegalSchedule(f"dimension {d} of {access.array} is read at run-time indices; it has no box")
    inside = {s for s in sympy.sympify(value).free_symbols if s in kernel.extents} - set(outer)
    form = affine(value, inside)
    if not form.is_exact or not form.is_integral:
        raise IllegalSchedule(f"dimension {d} of {access.array} is accessed at {value}, which is no sum of loops")
    first, count = sympy.sympify(form.constant), sympy.S.One
    for p, factor in form.terms:
        extent, rest = kernel.bounds(p)
        if int(factor) < 0 and rest is not None:
            raise IllegalSchedule(f"dimension {d} of {access.array} is walked down by {p}, whose tiles may be partial")
        first += min(int(factor), 0) * (extent - 1)
        count += abs(int(factor)) * (extent - 1)
    return first, sympy.expand(count)
