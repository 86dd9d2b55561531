"""Boxes: the elements of an array that some iterations access, and the iterations that write such elements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import TypeAlias

import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.sizes import ALL_SIZES, Sizes

Param: TypeAlias = sympy.Symbol

# ---------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Interval:
    """The integers ``start <= e < start + size``, of which ``bound`` are meant where the last may be missing.

    ``start`` is in the loops around, ``size`` a number or of sizes.
    """

    start: Dim
    size: Dim
    bound: Dim

    @staticmethod
    def whole(extent: Dim, start: Dim = 0) -> Interval:
        """``extent`` integers, none of which is missing."""
        return Interval(start, extent, extent)

    @property
    def is_one(self) -> bool:
        """Is it one integer, which is never missing?"""
        return bool(self.bound == 1)

    @property
    def rest(self) -> Dim | None:
        """What there is of it where the last ones are missing; None where none are."""
        rest = [] if self.bound == self.size else [e for e in sympy.Min.make_args(self.bound) if e != self.size]
        return rest[0] if rest else None


def hull(intervals: Several[Interval], extent: Dim, what: str | Param) -> Interval:
    """The smallest interval that has all of them, in a dimension of ``extent`` elements.

    Raises IllegalSchedule, with ``what`` has them, where they do not keep their distance from one another.
    """
    first, *others = dict.fromkeys(intervals)
    if not others:
        return first
    if any(i.start == 0 and same(i.size, extent) for i in intervals):
        return Interval.whole(extent)
    apart = [dim(sympy.expand(i.start - first.start)) for i in intervals]
    if not all(isinstance(a, int) for a in apart):
        places = " and ".join(f"{i.size} from {i.start} on" for i in (first, *others))
        raise IllegalSchedule(f"{what} has {places}, at no fixed distance")
    low = min(apart)
    return Interval.whole(_largest([dim(a - low + i.size) for a, i in zip(apart, intervals)]), dim(first.start + low))


def _largest(counts: list[Dim]) -> Dim:
    largest = counts[0]
    for n in counts[1:]:
        if ALL_SIZES.is_natural(largest - n):
            continue
        if not ALL_SIZES.is_natural(n - largest):
            raise IllegalSchedule(f"a box of {largest} or {n} elements; expected extents that can be compared")
        largest = n
    return largest


def cut(interval: Interval, extent: Dim, sizes: Sizes) -> Interval:
    """``interval`` without what may lie behind the end of a dimension of ``extent``, by what ``sizes`` know.

    Raises IllegalSchedule where it may begin before the dimension.
    """
    start, size = interval.start, interval.size
    if not sizes.is_natural(start):
        raise IllegalSchedule(f"a box that begins at {start}, which may be before the array")
    ends_inside = sizes.is_natural(extent - start - size)
    return Interval(start, size, size if ends_inside else sympy.Min(size, dim(extent - start), evaluate=False))


def move_inside(interval: Interval, extent: Dim, sizes: Sizes) -> Interval:
    """``interval`` moved into a dimension of ``extent`` where it reaches out of it: as many places, or all.

    Raises IllegalSchedule where it is not known whether there are as many.
    """
    start, size = interval.start, interval.size
    if same(size, extent) or sizes.is_natural(size - extent):
        return Interval.whole(extent)
    if not isinstance(size, int):
        raise IllegalSchedule(f"a box of {size} places of {extent}: which is more is not known")
    if not sizes.is_natural(extent - size - start):
        start = sympy.Min(start, extent - size)
    if not sizes.is_natural(start):
        start = sympy.Max(0, start)
    return Interval(start, size, size if sizes.is_natural(extent - size) else sympy.Min(size, extent))


# ---------------------------------------------------------------- boxes


class Box(tuple[Interval, ...]):
    """Elements of an array: an interval for each dimension."""

    __slots__ = ()

    @property
    def open(self) -> list[int]:
        """The dimensions in which it has not just one element: more, or, behind the array's end, none."""
        return [d for d, interval in enumerate(self) if not interval.is_one]

    @property
    def shape(self) -> Shape:
        """The sizes of the open dimensions."""
        return tuple(self[d].size for d in self.open)

    def inside(self, index: Several[Dim | None]) -> tuple[Dim, ...]:
        """The place in the box of an element of the array."""
        return tuple(dim(sympy.expand(sympy.sympify(index[d]) - self[d].start)) for d in self.open)

    def element(self, place: Mapping[int, Dim]) -> tuple[Dim, ...]:
        """The element of the array at ``place``, which has a number for each open dimension."""
        return tuple(dim(interval.start + place.get(d, 0)) for d, interval in enumerate(self))


def box_of(kernel: Kernel, accesses: Iterable[Access], shape: Shape, outer: Collection[Param]) -> Box:
    """What ``accesses`` of one array of ``shape`` reach while the loops ``outer`` stand still.

    Raises IllegalSchedule as ``reach_of`` and ``box_around`` do, and where the box may begin before the array.
    """
    listed = list(accesses)
    inner = {p for a in listed for p in a.params() if p in kernel.extents and p not in outer}
    ranges = {p: Interval.whole(kernel.bounds(p)[0]) for p in inner}
    sizes = ALL_SIZES.inside({p: kernel.bounds(p)[0] for p in outer})
    box = box_around([reach_of(a, ranges) for a in listed], shape, listed[0].array)
    return Box(cut(i, n, sizes) for i, n in zip(box, shape))


def box_around(boxes: Several[Box], shape: Shape, array: str) -> Box:
    """The smallest box of an array that has all of these. Raises IllegalSchedule as ``hull`` does."""
    return Box(hull(intervals, n, array) for intervals, n in zip(zip(*boxes), shape))


def reach_of(access: Access, ranges: Mapping[Param, Interval]) -> Box:
    """The elements that an access reaches while its parameters go over ``ranges``.

    Raises IllegalSchedule, with the index, for run-time indices and for places that are not affine, with numbers as
    factors.
    """
    spans = [None if value is None else span(value, ranges) for value in access.index]
    if None in spans:
        value = access.index[spans.index(None)]
        raise IllegalSchedule(f"{access.array} has the index {value}; expected a sum of loops, with numbers as factors")
    return Box(interval for interval in spans if interval is not None)


def span(value: Dim, ranges: Mapping[Param, Interval]) -> Interval | None:
    """The values of an index whose parameters go over ``ranges``; None where it is not affine, with numbers as
    factors."""
    form = affine(value, ranges)
    if not form.is_integral:
        return None
    start, size = form.constant, 1
    for p, factor in form.terms:
        start += factor * (ranges[p].start if factor > 0 else ranges[p].start + ranges[p].size - 1)
        size += abs(factor) * (ranges[p].size - 1)
    return Interval.whole(dim(size), dim(sympy.expand(start)))


# ---------------------------------------------------------------- statements for boxes of what they write


def iterations(stage: Stage, extents: Mapping[Param, Dim], boxes: Mapping[str, Box]) -> dict[Param, Interval]:
    """The iterations of a statement that write the elements ``boxes`` of arrays: all along what is reduced.

    Raises IllegalSchedule where a place is written that is not a parameter and a number.
    """
    needed: dict[Param, list[Interval]] = {p: [] for p in stage.params}
    for write in (a for a in stage.writes.values() if a.array in boxes):
        for p in (p for p in stage.params if p not in write.params()):
            needed[p].append(Interval.whole(extents[p]))
        for value, interval in zip(write.index, boxes[write.array]):
            form = affine(value, extents)
            if not form.is_exact or len(form.terms) > 1 or any(f != 1 for _, f in form.terms):
                raise IllegalSchedule(f"{write.array} is written at {value}; expected a parameter and a number")
            for p, _ in form.terms:
                needed[p].append(replace(interval, start=sympy.expand(interval.start - form.constant)))
    return {p: hull(intervals, extents[p], p) for p, intervals in needed.items()}


def restrict(
    stage: Stage, ranges: Mapping[Param, Interval], outer: tuple[Param, ...], name: Callable[[Param, Interval], Param]
) -> tuple[Stage, dict[Param, Interval]]:
    """The statement in the iterations ``ranges`` of its parameters, each of which counts from 0 in an iteration of
    ``outer``; and the intervals of the parameters that it has inside, which ``name`` names. Single ones have none."""
    inner: dict[Param, Interval] = {}
    mapping: dict[Param, Dim] = {}
    for p, interval in ranges.items():
        mapping[p] = interval.start
        if not interval.is_one:
            own = name(p, interval)
            inner[own], mapping[p] = interval, sympy.expand(interval.start) + own
    return stage.subs(mapping, (*outer, *inner)), inner


def place_locals(stage: Stage, boxes: Mapping[str, Box], names: Mapping[str, str]) -> Stage:
    """The statement, which accesses locals that hold ``boxes`` of arrays; ``names``: what they are called then."""

    def place(a: Access) -> Access:
        if a.array not in boxes:
            return a
        return replace(a, array=names.get(a.array, a.array), index=boxes[a.array].inside(a.index))

    return stage.with_accesses(place)
