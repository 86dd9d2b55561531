"""Which tiles a kernel of several statements should have: the sizes for which work and traffic together are least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, lcm, prod
from typing import Any

import sympy

from daceopt.cost.limits import Limits
from daceopt.errors import IllegalSchedule
from daceopt.ir.access.dataflow import address
from daceopt.ir.fusion.overlapped_tiling import TileLoop, tile
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.polyhedral.polyhedral import Member
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.schedule.schedule import Param
from daceopt.transformations.hardware._scheduling import cost

OPEN = 512  # what an open extent counts as
_SIZES = (1, 2, 4, 8, 16, 32)
_LONG = (1024, 4096)  # tiles along memory
_START = 8  # iterations that the start of a loop takes
_TAP = 2  # iterations that an element of a window takes in the library: 0.5 with rows, up to 6 with channels as lanes
_IRREGULAR = 4  # iterations that a read at irregular places takes: a gather beside a vector load
_NEAR = 0.1  # a byte of the second cache, or of an array that fits there, beside one of memory


@dataclass(frozen=True)
class Tiling:
    """A kernel in tiles, and what one run of it takes, in weighted iterations (``cost/limits.py``) of one core."""

    kernel: Kernel
    time: float


@dataclass(frozen=True)
class Estimate:
    """What a kernel takes: a byte to or from memory counts as one weighted iteration, which is what both took where
    the factors of ``cost/limits.py`` were found."""

    graph: Graph
    machine: Limits

    def time(self, kernel: Kernel) -> float:
        """What a kernel of the graph takes, or one in tiles."""
        work = sum(self._work(kernel, s, _IRREGULAR * self._irregular(kernel, s)) for s in kernel.stages)
        seconds = work + self._traffic(kernel) + self._inside(kernel)
        return seconds if seconds < self.machine.worthwhile else seconds * self._idle(kernel)

    def library_time(self, kernel: Kernel) -> float:
        """What the library takes for a window as ``kernel`` has it: it knows about borders, and goes element by
        element."""
        work = sum(self._work(kernel, s, _TAP * len(s.reads)) for s in kernel.stages)
        return work + self._traffic(kernel)

    def _idle(self, kernel: Kernel) -> float:
        """How much longer it takes where cores wait for the one that has a tile more."""
        tiles, cores = prod(_number(kernel.extents[p]) for p in kernel.outer), self.machine.cores
        return ceil(tiles / cores) * cores / tiles if kernel.outer and tiles else 1.0

    def _work(self, kernel: Kernel, stage: Stage, reading: float) -> float:
        """``reading``: what an iteration takes beside its own operations."""
        times = {p: _number(kernel.bounds(p)[0]) for p in stage.params}
        total, along = prod(times.values()), self._along(kernel, stage)
        starts = total / max(times[along], 1) if along is not None else total
        return total * (cost(stage.assignments) + reading) + _START * starts

    def _irregular(self, kernel: Kernel, stage: Stage) -> int:
        """Reads at irregular places, and conditions on the place itself, which keep gcc from making vectors."""
        along = self._along(kernel, stage)
        conditions = sum(4 for a in stage.assignments if along in a.expr.free_symbols)
        return conditions + sum(_is_irregular(along, a) for a in stage.reads.values())

    def _along(self, kernel: Kernel, stage: Stage) -> Param | None:
        """The parameter that ``vectorization`` would choose: most accesses lie side by side along it."""
        points: Counter[Param] = Counter()
        for accesses, weight in ((stage.reads, 1), (stage.writes, 2)):
            for access in accesses.values():
                unit = self.unit(kernel, access)
                if unit is not None and unit not in kernel.outer:
                    points[unit] += weight
        return max(points, key=lambda p: points[p], default=None)

    def unit(self, kernel: Kernel, access: Access) -> Param | None:
        """The parameter along which the elements of an access lie side by side."""
        if access.array in kernel.locals:
            terms = affine(access.index[-1]).terms if access.index and access.index[-1] is not None else ()
        else:
            where = address(self.graph, access)
            terms = () if where is None else where.terms
        return next((p for p, c in terms if c == 1), None)

    def _traffic(self, kernel: Kernel) -> float:
        arrays = dict.fromkeys(self.graph.root(a.array)[0] for a in (*kernel.reads(), *kernel.writes()))
        return sum(self.move_time(a) for a in arrays)

    def move_time(self, array: str) -> float:
        """What it takes to read or write all of an array."""
        size = self.bytes_of(array)
        return size if size > self.machine.l2 else _NEAR * size

    def bytes_of(self, array: str) -> float:
        return _number(self.graph.size(array)) * self.graph.dtype(array).bytes

    def _inside(self, kernel: Kernel) -> float:
        """Traffic of the locals: none where they stay in the first cache."""
        local = local_bytes(kernel)
        tiles = prod(_number(kernel.extents[p]) for p in kernel.outer)
        return 0.0 if local <= self.machine.l1 // 2 else 2 * _NEAR * local * tiles


def _is_irregular(along: Param | None, read: Access) -> bool:
    forms = [affine(e) for e in read.index if e is not None]
    return any(along in getattr(f.opaque, "free_symbols", ()) for f in forms)


def local_bytes(kernel: Kernel) -> float:
    """Bytes of all locals of one tile."""
    return sum(_number(sympy.Mul(*shape)) * dtype.bytes for dtype, shape in kernel.locals.values())


def _number(extent: Dim) -> float:
    if isinstance(extent, int):
        return extent
    return float(extent.subs(dict.fromkeys(extent.free_symbols, OPEN)))


class TileChoice:
    """The best tiles of ``kernel``, whose statements go along the loops ``band``."""

    def __init__(self, estimate: Estimate, kernel: Kernel, band: list[Member], size: int | None = None):
        self._estimate, self._kernel, self._machine = estimate, kernel, estimate.machine
        self._writers = [
            k for k, s in enumerate(kernel.stages) if any(a.array not in kernel.locals for a in s.writes.values())
        ]
        self._band = self._walked_once(band)
        self._size = size
        self.reason = "one loop that is too short for tiles"
        self._known: dict[tuple[Any, ...], Tiling | None] = {}

    def _walked_once(self, band: list[Member]) -> list[Member]:
        """The loops along which all that write arrays go, each by a parameter that no other loop walks, and over which
        it reduces nothing."""
        members: list[Member] = []
        params: set[Param] = set()
        for member in band:
            own = {member.values[k][0] for k in self._writers if k in member.values}
            if (
                all(k in member.values and self._is_kept(k, member.values[k][0]) for k in self._writers)
                and not own & params
            ):
                members.append(member)
                params |= own
        return members

    def _is_kept(self, k: int, p: Param) -> bool:
        writes = self._kernel.stages[k].writes.values()
        return all(p in a.params() for a in writes if a.array not in self._kernel.locals)

    def best(self) -> Tiling | None:
        """By coordinate descent from one iteration per tile, all of the loop along memory in it. None: ``reason``."""
        tiling = None
        for sizes, along in self._starts():
            tiling = _better(tiling, self._descend(sizes, along))
        return tiling

    def _units(self) -> list[int]:
        """The members along which something lies side by side: results, or what is read."""
        stages = self._kernel.stages
        accesses = [(k, a) for k, s in enumerate(stages) for a in (*s.writes.values(), *s.reads.values())]
        params: dict[int, None] = {}
        for k, access in accesses:
            unit = None if access.array in self._kernel.locals else self._estimate.unit(self._kernel, access)
            own = (d for d, m in enumerate(self._band) if k in m.values and m.values[k][0] == unit)
            params |= dict.fromkeys(own if unit is not None else ())
        return list(params)

    def _starts(self) -> Iterator[tuple[tuple[int | None, ...], int | None]]:
        """Sizes to begin with (None: the whole loop in each tile), and which of them stays as it is."""
        if not self._band:
            self.reason = "no loop that all statements share"
            return
        count = len(self._band)
        units: list[int | None] = [*self._units()]
        for along in units or [None]:
            for size in [1] if along is None else [None, *self._shorter(along)]:
                if size is not None or count > 1:  # of no loop, nothing would be shared by threads
                    yield tuple(size if d == along else self._first(d) for d in range(count)), along

    def _shorter(self, d: int) -> list[int]:
        """Tiles of a loop along memory that are less than all of it."""
        extents = [self._kernel.extents[self._band[d].values[k][0]] for k in self._writers]
        return [size for size in _LONG if any(not isinstance(e, int) or e > size for e in extents)]

    def _first(self, d: int) -> int:
        """Along a loop whose iterations depend on nothing of each other a larger tile computes nothing less."""
        return 1 if self._band[d].coincident else self._size or 1

    def _descend(self, sizes: tuple[int | None, ...], along: int | None) -> Tiling | None:
        tiling = self._tiling(sizes)
        for d in range(len(self._band)):
            if d == along or self._size is not None or self._band[d].coincident:
                continue
            for size in _SIZES[1:]:
                if not self._divides(d, size):
                    continue
                larger = tuple(size if k == d else s for k, s in enumerate(sizes))
                other = self._tiling(larger)
                if other is None or (tiling is not None and other.time >= tiling.time):
                    break
                tiling, sizes = other, larger
        return tiling

    def _divides(self, d: int, size: int) -> bool:
        """Partial tiles would cost the usual form of a schedule."""
        extents = [e for _, _, e in self._walks(d, size)]
        sizes = [s for _, s, _ in self._walks(d, size)]
        return all(isinstance(e, int) and e % s == 0 for e, s in zip(extents, sizes))

    def _walks(self, d: int, size: int) -> list[tuple[Param, int, Dim]]:
        """Of each writer: its parameter along member ``d``, its iterations in a tile of ``size``, and its extent."""
        values = [self._band[d].values[k] for k in self._writers]
        step = lcm(*(abs(f) for _, f, _ in values))
        walks = [(p, size * step // abs(f), self._kernel.extents[p]) for p, f, _ in values]
        return [(p, max(min(s, n), 1) if isinstance(n, int) else s, n) for p, s, n in walks]

    def _tiling(self, sizes: tuple[int | None, ...]) -> Tiling | None:
        if sizes not in self._known:
            self._known[sizes] = self._try(sizes)
        return self._known[sizes]

    def _try(self, sizes: tuple[int | None, ...]) -> Tiling | None:
        loops = []
        for d, size in enumerate(sizes):
            if size is not None:
                walks = self._walks(d, size)
                loops.append(TileLoop.over(self._kernel, {k: (p, s) for k, (p, s, _) in zip(self._writers, walks)}))
        try:
            kernel = tile(self._kernel, loops)
        except IllegalSchedule as error:
            self.reason = str(error)
            return None
        reason = self._why_not(kernel)
        if reason is not None:
            self.reason = reason
            return None
        return Tiling(kernel, self._estimate.time(kernel))

    def _why_not(self, kernel: Kernel) -> str | None:
        open_shapes = [a for a, (_, shape) in kernel.locals.items() if not all(isinstance(n, int) for n in shape)]
        if open_shapes:
            return f"{open_shapes[0]} has an open extent in a tile"
        if local_bytes(kernel) > self._machine.l2 // 2:
            return f"locals of {local_bytes(kernel):.0f} bytes; half of the second cache has {self._machine.l2 // 2}"
        return None


def _better(a: Tiling | None, b: Tiling | None) -> Tiling | None:
    tilings = [t for t in (a, b) if t is not None]
    return min(tilings, key=lambda t: t.time, default=None)
