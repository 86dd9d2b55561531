"""Executes a kernel in the order of its schedule: every loop with its own iterations, every accumulator with its own
memory, so that a tile which is dropped or run twice gives another result.

All iterations of a loop go through its body together, as rows of flat arrays: what a schedule may reorder, it may do at
once, and ``schedule_check`` has said what it may reorder. Loops that carry values run in order, and so do loops whose
iterations are too many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import dace
import numpy as np
import sympy

from daceopt.ir.access.references import Reference, StatementInstance, resolve_all
from daceopt.ir.interpreter.reduction import UFUNC, identity
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.microkernels import TileProduct, tiles
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.extents import in_scalar_code
from daceopt.ir.schedule.local_storage import fold_locals
from daceopt.ir.schedule.schedule import (
    Accumulate,
    Alloc,
    Call,
    Do,
    Guard,
    Loop,
    Partial,
    Sequence,
    Tree,
    accumulator_type,
    children,
    loops_below,
    paths,
    schedule_of,
    walk,
)

if TYPE_CHECKING:
    from daceopt.ir.interpreter.buffers import Memory

_COMPARED: dict[str, np.ufunc] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
}
_LANES = 16  # of a vector loop: a reduction over it is added up in as many partial sums
MOST_INSTANCES = 1 << 18  # beyond, a kernel's statements are executed as whole-array operations


def can_run(memory: Memory, kernel: Kernel) -> bool:
    """Is the kernel scheduled, and small enough to be executed so? Gathers take whole arrays, which have no rows.

    What runs in order has no other form.
    """
    if kernel.is_tiled:
        return True
    if kernel.schedule is None or any(None in a.index for s in kernel.stages for a in s.reads.values()):
        return False
    return all(prod(memory.number(kernel.extents[p]) for p in s.params) <= MOST_INSTANCES for s in kernel.stages)


def run(memory: Memory, kernel: Kernel) -> None:
    """Execute ``kernel``. Raises ValueError for an access out of range."""
    tree = schedule_of(kernel)
    _Execution(memory, fold_locals(kernel, tree), tree).node(tree, _Rows(1, {}))


@dataclass(frozen=True)
class _Rows:
    """Iterations: ``values`` has each parameter's value in each, and which accumulator or local each one has."""

    count: int
    values: dict[Any, np.ndarray]

    def repeat(self, times: np.ndarray, param: sympy.Symbol) -> _Rows:
        """Row k ``times[k]`` times, ``param`` counting."""
        index = np.repeat(np.arange(self.count), times)
        starts = np.cumsum(times) - times
        counter = np.arange(len(index)) - starts[index]
        return _Rows(len(index), {**{k: v[index] for k, v in self.values.items()}, param: counter})

    def at(self, times: np.ndarray, param: sympy.Symbol, value: int) -> _Rows:
        """Those that have an iteration ``value`` of ``param``."""
        there = self.only(times > value)
        return _Rows(there.count, {**there.values, param: np.full(there.count, value)})

    def only(self, mask: np.ndarray) -> _Rows:
        there = np.nonzero(mask)[0]
        return _Rows(len(there), {k: v[there] for k, v in self.values.items()})

    def number(self, name: object) -> _Rows:
        return replace(self, values={**self.values, name: np.arange(self.count)})


@dataclass(frozen=True)
class _Collector:
    """The memory of an accumulator: an element per row of its own and iteration of the loops ``dims``; of each lane of
    the vector loop ``across``, if there is one."""

    key: Any
    dims: tuple[Loop, ...]
    values: np.ndarray
    across: Loop | None = None


class _Execution:
    def __init__(self, memory: Memory, kernel: Kernel, tree: Tree):
        self._memory, self._kernel = memory, kernel
        self._bodies: dict[int, StatementInstance] = resolve_all(memory.graph, kernel, tree)
        self._tiles, self._paths = tiles(kernel, tree, self._bodies), paths(tree)
        self._params = {n.param for n, _ in walk(tree) if isinstance(n, Loop)}
        self._ordered = {s for n, _ in walk(tree) if isinstance(n, Do) for s in self._carrying(n)}
        for n, _ in walk(tree):
            if isinstance(n, Alloc):
                self._ordered |= {loop.param for loop in self._reusing(n)}
            if isinstance(n, Loop) and self._looks_back(n):
                self._ordered.add(n.param)
        self._locals: dict[str, np.ndarray] = {}
        self._collectors: dict[tuple[int, str], list[_Collector]] = {}

    def node(self, tree: Tree, rows: _Rows) -> None:
        if isinstance(tree, Sequence):
            for child in tree.children:
                self.node(child, rows)
        elif isinstance(tree, Loop):
            self._loop(tree, rows)
        elif isinstance(tree, Alloc):
            self._alloc(tree, rows)
        elif isinstance(tree, Accumulate):
            self._accumulate(tree, rows)
        elif isinstance(tree, Guard):
            self.node(tree.body, rows.only(self._holds(tree, rows)))
        elif isinstance(tree, Call):
            self._call(tree, rows)
        else:
            self._do(tree, rows)

    def _carrying(self, do: Do) -> set[sympy.Symbol]:
        """The loops over serial parameters around a statement."""
        values = zip(self._kernel.stages[do.statement].params, do.index)
        return {s for p, e in values if p in self._kernel.serial for s in sympy.sympify(e).free_symbols}

    def _reusing(self, alloc: Alloc) -> Iterator[Loop]:
        """Loops inside of a local's life whose iterations write the same elements of it, one after the other."""
        for loop in (n for n, _ in walk(alloc.body) if isinstance(n, Loop)):
            bodies = [self._bodies[n.statement] for n, _ in walk(loop) if isinstance(n, Do)]
            written = [r for b in bodies for r in b.writes.values() if r.buffer.local and r.buffer.array == alloc.array]
            is_read = any(r.buffer.local and r.buffer.array == alloc.array for b in bodies for r in b.reads.values())
            if is_read and any(not r.step(loop.param) or loop.param in _free(r.rest) for r in written):
                yield loop

    def _looks_back(self, loop: Loop) -> bool:
        """Does a statement read what one that is behind it has written, in an iteration before?"""
        stages = [self._kernel.stages[n.statement] for n, _ in walk(loop) if isinstance(n, Do)]
        inside = {*self._kernel.locals, *self._kernel.forwarded_arrays()}
        written = [{a.array for a in s.writes.values()} & inside for s in stages]
        return any(a.array in late for k, s in enumerate(stages) for a in s.reads.values() for late in written[k + 1 :])

    def _loop(self, loop: Loop, rows: _Rows) -> None:
        many = self._kernel.is_tiled and rows.count * self._size(loop) > MOST_INSTANCES
        if loop.param not in self._ordered and not many:
            self.node(loop.body, self._iterations(loop, rows))
            return
        times = self._times(loop, rows)
        for value in range(int(times.max(initial=0))):
            self.node(loop.body, rows.at(times, loop.param, value))

    def _holds(self, guard: Guard, rows: _Rows) -> np.ndarray:
        mask = np.ones(rows.count, bool)
        for c in guard.condition:
            mask &= _COMPARED[c.rel_op](self._whole(c.lhs, rows), self._whole(c.rhs, rows))
        return mask

    def _size(self, tree: Tree) -> int:
        """The most elements that one execution of ``tree`` has in hand: rows of statements, and tiles of calls."""
        tile = self._tiles.get(id(tree))
        if isinstance(tile, TileProduct):
            m, n, k = (1 if p is None else self._memory.number(p.extent) for p in tile.loops)
            return m * n + m * k + k * n
        times = self._memory.number(tree.extent) if isinstance(tree, Loop) and tree.param not in self._ordered else 1
        return times * max(map(self._size, children(tree)), default=1)

    def _times(self, loop: Loop, rows: _Rows) -> np.ndarray:
        times = np.full(rows.count, self._memory.number(loop.extent))
        if loop.rest is not None:
            times = np.minimum(times, self._whole(loop.rest, rows))
        return np.maximum(times, 0)

    def _iterations(self, loop: Loop, rows: _Rows) -> _Rows:
        return rows.repeat(self._times(loop, rows), loop.param)

    def _whole(self, expr: Dim, rows: _Rows) -> np.ndarray:
        """An integer expression over sizes and loop parameters, for each row."""
        expr = sympy.sympify(expr)
        numbers = {s: self._memory.number(s) for s in expr.free_symbols - self._params}
        fixed = expr.subs(numbers)
        names = sorted(fixed.free_symbols, key=str)
        if not names:
            return np.full(rows.count, int(fixed))
        bound = {s: rows.values[s] for s in names}
        return np.broadcast_to(scalar.evaluate(in_scalar_code(fixed), bound, None, dace.int64), (rows.count,))

    # ---------------------------------------------------------------- memory inside the kernel

    def _alloc(self, tree: Alloc, rows: _Rows) -> None:
        dtype, shape = self._kernel.locals[tree.array]
        size = prod(self._memory.number(n) for n in shape)
        kind = self._memory.numpy_dtype(dtype)
        garbage = np.nan if kind.kind == "f" else 1
        self._locals[tree.array] = np.full((rows.count, max(int(size), 1)), garbage, kind)
        self.node(tree.body, rows.number(tree.array))

    def _accumulate(self, tree: Accumulate, rows: _Rows) -> None:
        collectors = [(write, self._collector(tree, p, rows)) for write, p in zip(tree.writes(), tree.partials)]
        inside = rows
        for write, collector in collectors:
            self._collectors.setdefault(write, []).append(collector)
            inside = inside.number(collector.key)
        self.node(tree.body, inside)
        for write, collector in collectors:
            self._collectors[write].pop()
            self._store(write, collector, rows)

    def _collector(self, tree: Accumulate, partial: Partial, rows: _Rows) -> _Collector:
        target = self._bodies[partial.statement].writes[partial.connector]
        dims = tuple(
            loop for loop in loops_below(tree, self._paths[partial.statement]) if loop.param in target.params()
        )
        own = types.compute_type(target.buffer.dtype)
        assert target.wcr is not None
        kind = self._memory.numpy_dtype(accumulator_type(own, target.wcr) if partial.wide else own)
        lanes = tree.body if isinstance(tree.body, Loop) and tree.body.kind == "vector" and not partial.wide else None
        across = lanes if lanes is not None and lanes not in dims else None
        sizes = [*(self._memory.number(loop.extent) for loop in dims), *([] if across is None else [_LANES])]
        values = np.full((rows.count, *sizes), identity(target.wcr, kind), kind)
        return _Collector((id(tree), partial), dims, values, across)

    def _store(self, write: tuple[int, str], collector: _Collector, rows: _Rows) -> None:
        inside = rows.number(collector.key)
        for loop in collector.dims:
            inside = self._iterations(loop, inside)
        values = collector.values
        if collector.across is not None:
            kind = self._bodies[write[0]].writes[write[1]].wcr
            assert kind is not None
            values = UFUNC[kind].reduce(values, axis=-1, dtype=values.dtype)
        self._write(write, values[self._place(collector, inside)], inside)

    @staticmethod
    def _place(collector: _Collector, rows: _Rows) -> tuple[np.ndarray, ...]:
        return rows.values[collector.key], *(rows.values[loop.param] for loop in collector.dims)

    # ---------------------------------------------------------------- statements

    def _do(self, tree: Do, rows: _Rows) -> None:
        body = self._bodies[tree.statement]
        values: dict[str, np.ndarray] = {c: self._read(r, rows) for c, r in body.reads.items()}
        values |= {str(s): v for s, v in rows.values.items() if isinstance(s, sympy.Symbol)}
        self._memory.compute(body.assignments, values)
        for connector in body.writes:
            value = np.broadcast_to(values[connector], (rows.count,))
            self._write((tree.statement, connector), value, rows)

    def _call(self, tree: Call, rows: _Rows) -> None:
        tile = self._tiles[id(tree)]
        if isinstance(tile, TileProduct):
            self._products(tile, rows)
        else:
            self.node(tree.body, rows)

    def _products(self, product: TileProduct, rows: _Rows) -> None:
        """Tiles of equal size together; what the calls do not write keeps what it has."""
        counts = [np.ones(rows.count, np.int64) if p is None else self._times(p, rows) for p in product.loops]
        sizes = np.stack(counts, axis=1)
        for m, n, k in np.unique(sizes, axis=0):
            there = np.nonzero((sizes == (m, n, k)).all(axis=1))[0]
            self._product(product, _Rows(len(there), {p: v[there] for p, v in rows.values.items()}), (m, n, k))

    def _product(self, product: TileProduct, rows: _Rows, sizes: tuple[int, int, int]) -> None:
        extents = dict(zip(product.loops, sizes))
        a = self._read(product.a, self._tile(rows, extents, product.m, product.k))
        b = self._read(product.b, self._tile(rows, extents, product.k, product.n))
        m, n, k = sizes
        with np.errstate(all="ignore"):
            a, b = (x.astype(self._memory.numpy_dtype(types.compute_type(product.dtype))) for x in (a, b))
            value = np.matmul(a.reshape(rows.count, m, k), b.reshape(rows.count, k, n))
        self._write(
            (product.statement, product.connector), value.reshape(-1), self._tile(rows, extents, product.m, product.n)
        )

    @staticmethod
    def _tile(rows: _Rows, sizes: dict[Loop | None, int], *loops: Loop | None) -> _Rows:
        """Each row for each element of its tile."""
        for loop in (p for p in loops if p is not None):
            rows = rows.repeat(np.full(rows.count, sizes[loop]), loop.param)
        return rows

    def _write(self, write: tuple[int, str], value: np.ndarray, rows: _Rows) -> None:
        target = self._bodies[write[0]].writes[write[1]]
        holders = self._collectors.get(write, [])
        with np.errstate(all="ignore"):
            if holders:
                assert target.wcr is not None
                place = self._place(holders[-1], rows)
                if holders[-1].across is not None:
                    place = (*place, rows.values[holders[-1].across.param] % _LANES)
                UFUNC[target.wcr].at(holders[-1].values, place, value)
                return
            array, index = self._element(target, rows)
            array[index] = value

    def _read(self, reference: Reference, rows: _Rows) -> np.ndarray:
        array, index = self._element(reference, rows)
        if not reference.whole:
            return np.asarray(array[index])
        *local, address = index if isinstance(index, tuple) else (index,)
        lead, address = len(reference.whole), address if reference.params() else address[:1]
        for k, (extent, step) in enumerate(reference.whole):
            along = np.arange(self._memory.number(extent)) * self._memory.number(step)
            address = address + along.reshape([-1 if k == d else 1 for d in range(lead + 1)])
        place = (*local, address)
        return np.asarray(array[place])

    def _element(self, reference: Reference, rows: _Rows) -> tuple[np.ndarray, Any]:
        address = self._whole(reference.rest, rows).astype(np.int64)
        for p, step in reference.steps:
            address = address + self._memory.number(step) * rows.values[p]
        buffer = reference.buffer
        if buffer.local:
            return self._locals[buffer.array], (rows.values[buffer.array], address)
        array = self._memory.buffer(buffer.array)
        address = address + self._memory.number(dim(buffer.offset))
        if rows.count and (address.min() < 0 or address.max() >= array.size):
            where = f"elements {address.min()} to {address.max()} of a buffer of {array.size}"
            raise ValueError(f"kernel {self._kernel.label}, array {buffer.array}: {where}")
        return array, address


def _free(expr: Dim) -> set[sympy.Symbol]:
    return getattr(expr, "free_symbols", set())
