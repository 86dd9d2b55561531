"""Tiles of what kernels write, each with all that it needs of what they compute in between.

A tile of a consumer reads the elements of an intermediate array in a box; the tile computes that box into a local, also
where its neighbours compute the same elements: recomputation at the borders in place of a trip through memory
(Krishnamoorthy et al., PLDI 2007: overlapped tiling; Ragan-Kelley et al., PLDI 2013: compute_at). Where boxes do not
overlap, as under windows of 2 that step by 2, nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

import sympy

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.boxes import Box, Interval, box_around, iterations, move_inside, place_locals, reach_of, restrict
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.scalar.symbols import param
from daceopt.ir.scalar.tiles import blocks
from daceopt.ir.schedule.schedule import Param

Ranges: TypeAlias = dict[Param, Interval]  # iterations of a statement in a tile


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


def tile(kernel: Kernel, loops: Sequence[TileLoop]) -> Kernel:
    """``kernel`` (locals in the form of ``fusion.expand_locals``) in tiles, whose loops are its outer ones.

    Raises IllegalSchedule where a statement that writes an array does not walk one of the loops, where an index has no
    interval, and where two readers of a local need places whose distance is no number.
    """
    return _Tiling(kernel, loops).kernel()


class _Tiling:
    def __init__(self, kernel: Kernel, loops: Sequence[TileLoop]):
        self._old, self._loops = kernel, loops
        self._tiles = tuple(param(k) for k in range(len(loops)))
        self._counts = dict(zip(self._tiles, (loop.count for loop in loops)))
        self._own: dict[int, Ranges] = {}
        self._needed: dict[int, Ranges] = {}
        self._homes: dict[str, Box] = {}  # local -> its elements in a tile
        self._params: dict[tuple[int, Dim], Param] = {}
        for k in reversed(range(len(kernel.stages))):
            self._find(k)

    # ------------------------------------------------------------ what a tile has of each statement

    def _find(self, k: int) -> None:
        stage, sizes = self._old.stages[k], ALL_SIZES.inside(self._counts)
        local = [a for a in stage.writes.values() if a.array in self._old.locals]
        if len(local) < len(stage.writes):
            self._own[k] = self._own_ranges(k)
        read = {a.array: box for a in local if (box := self._read_box(a.array, k)) is not None}
        if read:
            domain = iterations(stage, self._old.extents, read)
            self._needed[k] = {p: move_inside(i, self._old.extents[p], sizes) for p, i in domain.items()}
            self._homes |= {a.array: self._reach(a, self._needed[k]) for a in local}

    def _own_ranges(self, k: int) -> Ranges:
        """The part of the statement's domain that a tile has; the tiles together have all of it, each instance once."""
        ranges = {p: Interval.whole(self._old.extents[p]) for p in self._old.stages[k].params}
        for tile, loop in zip(self._tiles, self._loops):
            if k not in loop.walks:
                raise IllegalSchedule(f"statement {k} writes an array and does not walk the tiles of {tile}")
            p, size = loop.walks[k]
            self._check_kept(k, p)
            if ranges[p].start != 0:
                raise IllegalSchedule(f"two loops over tiles walk {p} of statement {k}")
            extent = self._old.extents[p]
            if extent == 0:
                raise IllegalSchedule(f"{p} of statement {k} has no iteration")
            even = isinstance(extent, int) and extent % size == 0 and same(loop.count, extent // size)
            exact = even or (size == 1 and same(loop.count, extent))
            bound = size if exact else sympy.Min(size, extent - size * tile, evaluate=False)
            ranges[p] = Interval(size * tile, size, bound)
        return ranges

    def _check_kept(self, k: int, p: Param) -> None:
        """What is reduced over ``p`` would be written by several tiles."""
        stage = self._old.stages[k]
        if any(p not in a.params() for a in stage.writes.values() if a.array not in self._old.locals):
            raise IllegalSchedule(f"statement {k} reduces over {p}, of which a tile would have a part")

    def _read_box(self, local: str, k: int) -> Box | None:
        """The elements of a local that the statements after ``k`` read in a tile; None where there are none."""
        boxes = [
            self._reach(a, ranges)
            for j in range(k + 1, len(self._old.stages))
            for ranges in (self._own.get(j), self._needed.get(j))
            for a in self._old.stages[j].reads.values()
            if ranges is not None and a.array == local
        ]
        return box_around(boxes, self._old.locals[local][1], local) if boxes else None

    def _reach(self, access: Access, ranges: Ranges) -> Box:
        """The elements of a local that an access reaches from these iterations, without the bounds of the local: a box
        is moved inside of these anyway."""
        shape = self._old.locals[access.array][1]
        return reach_of(replace(access, index=tuple(map(_without_bounds, access.index, shape))), ranges)

    # ------------------------------------------------------------ the kernel

    def kernel(self) -> Kernel:
        """The statements in tiles: what is needed of each, and its own part, where that is another one."""
        stages: list[Stage] = []
        for k, stage in enumerate(self._old.stages):
            own, needed = self._own.get(k), self._needed.get(k)
            if needed is not None:
                stages.append(self._stage(stage if own in (None, needed) else _only(stage, self._old, True), needed))
            if own is not None and own != needed:
                stages.append(self._stage(_only(stage, self._old, False), own))
        written = {a.array for s in stages for a in s.writes.values()}
        local = {a: (self._old.locals[a][0], box.shape) for a, box in self._homes.items() if a in written}
        extents = self._counts | {p: n for (_, n), p in self._params.items()}
        return Kernel(self._old.label, extents, stages, self._tiles, local)

    def _stage(self, stage: Stage, ranges: Ranges) -> Stage:
        """The statement in these iterations: those with equal loops share the names of these."""
        names = count()

        def name(_: Param, interval: Interval) -> Param:
            key = next(names), dim(interval.bound)
            return self._params.setdefault(key, param(len(self._tiles) + len(self._params)))

        return place_locals(restrict(stage, ranges, self._tiles, name)[0], self._homes, {})


def _only(stage: Stage, kernel: Kernel, local: bool) -> Stage:
    """The statement with its writes of locals, or with those of arrays, alone."""
    writes = {c: a for c, a in stage.writes.items() if (a.array in kernel.locals) is local}
    return replace(stage, writes=writes)


def _without_bounds(expr: sympy.Expr, extent: Dim) -> sympy.Expr:
    for kind, bound in ((sympy.Max, 0), (sympy.Min, extent - 1)):
        if isinstance(expr, kind) and any(same(a, bound) for a in expr.args):
            return _without_bounds(kind(*(a for a in expr.args if not same(a, bound))), extent)
    return expr
