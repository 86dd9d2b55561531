"""Tiles of what kernels write, each with all that it needs of what they compute in between.

A tile of a consumer reads the elements of an intermediate array in a box; the tile computes that box into a local, also
where its neighbours compute the same elements: recomputation at the borders in place of a trip through memory
(Krishnamoorthy et al., PLDI 2007: overlapped tiling; Ragan-Kelley et al., PLDI 2013: compute_at). Where boxes do not
overlap, as under windows of 2 that step by 2, nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar.affine import affine, same
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.scalar.symbols import param
from daceopt.ir.scalar.tiles import blocks
from daceopt.ir.schedule.schedule import Param


@dataclass(frozen=True)
class TileLoop:
    """A loop over ``count`` tiles. ``walks``: statement that writes an array -> (its parameter, iterations in a
    tile)."""

    count: Dim
    walks: Mapping[int, tuple[Param, int]]

    @staticmethod
    def over(kernel: Kernel, walks: Mapping[int, tuple[Param, int]]) -> TileLoop:
        """As many tiles as the longest of these parameters has."""
        counts = dict.fromkeys(blocks(kernel.extents[p], size) for p, size in walks.values())
        return TileLoop(next(iter(counts)) if len(counts) == 1 else dim(sympy.Max(*counts)), walks)


@dataclass(frozen=True)
class Interval:
    """``size`` integers from ``base`` on; ``base`` names the tiles. A part of one may be cut off: ``extent``."""

    base: Any
    size: Dim
    extent: Any = None  # how many there are in this tile; None: ``size``

    def move(self, by: Any) -> Interval:
        return Interval(sympy.expand(self.base + by), self.size)


Box = Mapping[Param, Interval]


def tile(kernel: Kernel, loops: Sequence[TileLoop]) -> Kernel:
    """``kernel`` (locals in the form of ``fusion.expand_locals``) in tiles, whose loops are its outer ones.

    Raises Unsupported where a statement that writes an array does not walk one of the loops, where an index has no
    interval, and where two readers of a local need places whose distance is no number.
    """
    return _Tiling(kernel, loops).kernel()


class _Tiling:
    def __init__(self, kernel: Kernel, loops: Sequence[TileLoop]):
        self._old, self._loops = kernel, loops
        self._tiles = [param(k) for k in range(len(loops))]
        self._counts = dict(zip(self._tiles, (loop.count for loop in loops)))
        self._own: dict[int, Box] = {}
        self._needed: dict[int, Box] = {}
        self._homes: dict[str, tuple[Interval, ...]] = {}  # local -> its elements in a tile, per dimension
        self._params: dict[tuple[int, Any], Param] = {}
        self._extents: dict[Param, Dim] = dict(self._counts)
        self._find()

    # ------------------------------------------------------------ what a tile has of each statement

    def _find(self) -> None:
        for k in reversed(range(len(self._old.stages))):
            stage = self._old.stages[k]
            local = [a for a in stage.writes.values() if a.array in self._old.locals]
            if len(local) < len(stage.writes):
                self._own[k] = self._own_box(k)
            read = {a: home for a in local if (home := self._home(a, k)) is not None}
            if read:
                self._needed[k] = box = self._producing(stage, read)
                for a in local:
                    self._homes[a.array] = tuple(_interval(e, box, n) for e, n in zip(a.index, self._shape(a)))

    def _own_box(self, k: int) -> Box:
        """The part of the statement's domain that a tile has; the tiles together have all of it, each instance once."""
        box = {p: Interval(sympy.S.Zero, self._old.extents[p]) for p in self._old.stages[k].params}
        for tile, loop in zip(self._tiles, self._loops):
            if k not in loop.walks:
                raise Unsupported(f"statement {k} writes an array and does not walk the tiles of {tile}")
            p, size = loop.walks[k]
            self._check_kept(k, p)
            if box[p].base != 0:
                raise Unsupported(f"two loops over tiles walk {p} of statement {k}")
            extent = self._old.extents[p]
            if extent == 0:
                raise Unsupported(f"{p} of statement {k} has no iteration")
            even = isinstance(extent, int) and extent % size == 0 and same(loop.count, extent // size)
            rest = None if even else sympy.Min(size, extent - size * tile, evaluate=False)
            exact = size == 1 and same(loop.count, extent)
            box[p] = Interval(size * tile, size, None if exact else rest)
        return box

    def _check_kept(self, k: int, p: Param) -> None:
        """What is reduced over ``p`` would be written by several tiles."""
        stage = self._old.stages[k]
        if any(p not in a.params() for a in stage.writes.values() if a.array not in self._old.locals):
            raise Unsupported(f"statement {k} reduces over {p}, of which a tile would have a part")

    def _home(self, write: Access, k: int) -> tuple[Interval, ...] | None:
        """The elements of a local that the statements after ``k`` read in a tile; None where there are none."""
        regions: list[tuple[Interval, ...]] = []
        shape = self._shape(write)
        for j in range(k + 1, len(self._old.stages)):
            for box in (b for b in (self._own.get(j), self._needed.get(j)) if b is not None):
                reads = (a for a in self._old.stages[j].reads.values() if a.array == write.array)
                regions += [tuple(_interval(e, box, n) for e, n in zip(a.index, shape)) for a in reads]
        return tuple(_hull(places, n) for places, n in zip(zip(*regions), shape)) if regions else None

    def _shape(self, write: Access) -> tuple[Dim, ...]:
        return self._old.locals[write.array][1]

    def _producing(self, stage: Stage, read: Mapping[Access, Sequence[Interval]]) -> Box:
        """The statement's instances that write the elements ``read`` of its locals: all along what is reduced."""
        extents = self._old.extents
        wanted: dict[Param, list[Interval]] = {p: [] for p in stage.params}
        for write, home in read.items():
            for p in stage.params:
                if p not in write.params():
                    wanted[p].append(Interval(sympy.S.Zero, extents[p]))
            for e, places in zip(write.index, home):
                form = affine(e, extents)
                if not form.is_exact or len(form.terms) > 1 or any(f != 1 for _, f in form.terms):
                    raise Unsupported(f"{write.array} is written at {e}; expected a parameter and a number")
                for p, _ in form.terms:
                    wanted[p].append(places.move(-form.constant))
        return {p: _inside(_hull(intervals, extents[p]), extents[p], self._counts) for p, intervals in wanted.items()}

    # ------------------------------------------------------------ the kernel

    def kernel(self) -> Kernel:
        """The statements in tiles: what is needed of each, and its own part, where that is another one."""
        stages: list[Stage] = []
        for k, stage in enumerate(self._old.stages):
            own, needed = self._own.get(k), self._needed.get(k)
            if own is not None and needed is not None and own != needed:
                stages += [self._stage(_only(stage, self._old, True), needed), self._own_stage(stage, own)]
            elif own is not None or needed is not None:
                part = stage if needed is not None else _only(stage, self._old, False)
                stages.append(self._stage(part, needed if needed is not None else own))  # type: ignore[arg-type]
        local = {
            a: (self._old.locals[a][0], tuple(i.size for i in _wide(home)))
            for a, home in self._homes.items()
            if any(a == w.array for s in stages for w in s.writes.values())
        }
        extents = {p: n for p, n in self._extents.items() if p in self._tiles or any(p in s.params for s in stages)}
        return Kernel(self._old.label, extents, stages, tuple(self._tiles), local)

    def _own_stage(self, stage: Stage, box: Box) -> Stage:
        return self._stage(_only(stage, self._old, False), box)

    def _stage(self, stage: Stage, box: Box) -> Stage:
        mapping: dict[Any, Any] = {}
        inner: list[Param] = []
        for p in stage.params:
            place = box[p]
            if place.size == 1 and place.extent is None:
                mapping[p] = place.base
                continue
            inner.append(self._inner(len(inner), dim(place.size if place.extent is None else place.extent)))
            mapping[p] = sympy.expand(place.base) + inner[-1]
        moved = stage.subs(mapping, (*self._tiles, *inner))
        return replace(moved, reads=self._place_all(moved.reads), writes=self._place_all(moved.writes))

    def _inner(self, position: int, extent: Dim) -> Param:
        """The parameter of the loop at ``position`` of ``extent``: statements with equal loops share their names."""
        key = (position, extent)
        if key not in self._params:
            self._params[key] = param(len(self._tiles) + len(self._params))
            self._extents[self._params[key]] = extent
        return self._params[key]

    def _place_all(self, accesses: Mapping[str, Access]) -> dict[str, Access]:
        """Accesses of locals relative to the elements that a tile has of them."""
        return {c: self._place(a) if a.array in self._homes else a for c, a in accesses.items()}

    def _place(self, access: Access) -> Access:
        home = self._homes[access.array]
        places = [(e, i) for e, i in zip(access.index, home) if i in _wide(home)]
        return replace(access, index=tuple(dim(sympy.expand(e - i.base)) for e, i in places))


def _wide(home: Sequence[Interval]) -> list[Interval]:
    """The dimensions that a local has: those of more than one element in a tile."""
    return [i for i in home if not same(i.size, 1)]


def _only(stage: Stage, kernel: Kernel, local: bool) -> Stage:
    """The statement with its writes of locals, or with those of arrays, alone."""
    writes = {c: a for c, a in stage.writes.items() if (a.array in kernel.locals) is local}
    return replace(stage, writes=writes)


# ---------------------------------------------------------------- intervals


def _interval(expr: Any, box: Box, extent: Dim) -> Interval:
    """The places in a dimension of ``extent`` that an index reaches from the instances in ``box``."""
    expr = _without_bounds(sympy.sympify(expr), extent)
    form = affine(expr, box)
    if not form.is_exact or any(not isinstance(f, int) for _, f in form.terms):
        raise Unsupported(f"an index {expr}: expected parameters with numbers as factors")
    low, reach = sympy.sympify(form.constant), sympy.S.Zero
    for p, factor in form.terms:
        place = box[p]
        low += factor * (place.base if factor > 0 else place.base + place.size - 1)
        reach += abs(factor) * (place.size - 1)
    return Interval(sympy.expand(low), dim(sympy.expand(reach + 1)))


def _without_bounds(expr: Any, extent: Dim) -> Any:
    """Without the bounds of the dimension itself: a box is cut to these anyway."""
    for kind, bound in ((sympy.Max, 0), (sympy.Min, extent - 1)):
        if isinstance(expr, kind) and any(same(a, bound) for a in expr.args):
            return _without_bounds(kind(*(a for a in expr.args if not same(a, bound))), extent)
    return expr


def _hull(places: Sequence[Interval], extent: Dim) -> Interval:
    """The smallest interval that has all of them, in a dimension of ``extent``."""
    whole = next((i for i in places if i.base == 0 and same(i.size, extent)), None)
    return reduce(_join, places) if whole is None else whole


def _join(a: Interval, b: Interval) -> Interval:
    distance = dim(sympy.expand(b.base - a.base))
    if distance == 0 and same(a.size, b.size):
        return a
    if not isinstance(distance, int) or not (isinstance(a.size, int) and isinstance(b.size, int)):
        raise Unsupported(f"a box from {a.base} and one from {b.base} on, of {a.size} and {b.size}: no fixed distance")
    start = a if distance >= 0 else b
    return Interval(start.base, max(a.size, b.size + distance) - min(distance, 0))


def _inside(wanted: Interval, extent: Dim, counts: Mapping[Param, Dim]) -> Interval:
    """``wanted`` moved into [0, extent) where it reaches out of it in some tile: as many places, or all."""
    tiles = ALL_SIZES.inside(counts)
    if same(wanted.size, extent) or tiles.is_natural(wanted.size - extent):
        return Interval(sympy.S.Zero, extent)
    if not isinstance(wanted.size, int):
        raise Unsupported(f"a box of {wanted.size} places of {extent}: which is more is not known")
    base = wanted.base
    if not tiles.is_natural(extent - wanted.size - base):
        base = sympy.Min(base, extent - wanted.size)
    if not tiles.is_natural(base):
        base = sympy.Max(0, base)
    whole = tiles.is_natural(extent - wanted.size)
    return Interval(base, wanted.size, None if whole else sympy.Min(wanted.size, extent))
