"""Plans memory before the first call: which buffers share a place in the arena, where saved arrays stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
from dace import nodes

from daceopt.codegen.regions import FrameBuffer, Inner, Scope
from daceopt.ir import types
from daceopt.ir.dataflow import same_elements
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ir.kernel import Kernel

ALIGNMENT = 64
HINT = 1 << 10  # value taken for a size symbol when slots are compared; only the fit depends on it


@dataclass
class MemoryPlan:
    """Byte offsets, multiples of 64, as ints or expressions over the graph's size symbols.

    ``arena``: transient buffer -> offset in the arena of ``arena_bytes``; ``saved``: saved array -> offset in the block
    of ``saved_bytes``. Inputs, outputs and constants are in neither. Buffers inside of regions have the names that they
    have in the frame.
    """

    arena: dict[str, Dim] = field(default_factory=dict)
    saved: dict[str, Dim] = field(default_factory=dict)
    arena_bytes: Dim = 0
    saved_bytes: Dim = 0


@dataclass
class _Slot:
    bytes: Dim
    hint: int
    free_after: int  # position of the last node that uses it
    buffers: list[str]
    regions: list[MemoryPlan] = field(default_factory=list)


def plan(
    graph: Graph, saved: Sequence[str] = (), *, reuse: bool = True, order: Sequence[Any] | None = None
) -> MemoryPlan:
    """Place every transient root buffer of ``graph``; two share a slot when no node needs both.

    The order is that of ``graph.nodes()``, in which the frame executes them, unless another is asked about. An
    element-wise kernel may write where an input that dies there stands, when it reads and writes the same element in
    each iteration. ``saved`` (arrays that a later program reads) are laid out by their order alone, so forward and
    backward agree. What stands inside of a region shares one slot, which is in use while the region runs.
    """
    offsets, size = saved_offsets(graph, saved)
    result = MemoryPlan(saved=offsets, saved_bytes=size)
    return _Planner(Scope(graph), set(result.saved), reuse, order).place(result)


def lifetimes(graph: Graph, saved: Sequence[str] = ()) -> dict[str, tuple[int, int]]:
    """Each buffer of the arena -> the positions of the first and of the last node that uses it; those inside of regions
    are not among them."""
    return _Planner(Scope(graph), set(saved), True).lifetimes()


def saved_offsets(graph: Graph, saved: Sequence[str]) -> tuple[dict[str, Dim], Dim]:
    """Where each of the arrays ``saved`` stands in the saved block, and the bytes of the block."""
    offsets: dict[str, Dim] = {}
    size: Dim = 0
    for name in saved:
        offsets[name] = size
        size = dim(size + aligned_bytes(graph, name))
    return offsets, size


def aligned_bytes(graph: Graph, name: str) -> Dim:
    """Bytes of the buffer ``name``, rounded up to whole cache lines."""
    return _aligned(graph.desc(name).total_size, graph.dtype(name))


def _aligned(elements: Dim, dtype: types.DType) -> Dim:
    size = dim(elements * types.itemsize(dtype))
    if isinstance(size, int):
        return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
    return ALIGNMENT * sympy.floor((size + ALIGNMENT - 1) / ALIGNMENT)


class _Planner:
    def __init__(self, scope: Scope, elsewhere: set[str], reuse: bool, order: Sequence[Any] | None = None):
        self._scope, self._reuse = scope, reuse
        self._graph = graph = scope.graph
        self._order = graph.nodes() if order is None else order
        self._elsewhere = elsewhere
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._slots: list[_Slot] = []
        self._slot_of: dict[str, _Slot] = {}

    def place(self, result: MemoryPlan) -> MemoryPlan:
        """Add the buffers of the scope to ``result``."""
        self._liveness()
        for position, node in enumerate(self._order):
            for name in self._roots(self._graph.outputs_of(node)):
                if self._first.get(name) == position:
                    self._assign(name, position, node)
            if node in self._scope.inner:
                self._assign_region(self._scope.inner[node], position)
        for slot in self._slots:
            for name in slot.buffers:
                result.arena[self._scope.prefix + name] = result.arena_bytes
            for inner in slot.regions:
                result.arena |= {name: dim(result.arena_bytes + offset) for name, offset in inner.arena.items()}
            result.arena_bytes = dim(result.arena_bytes + slot.bytes)
        return result

    def _assign_region(self, inner: Inner, position: int) -> None:
        workspace = _workspace(inner)
        if workspace.arena:
            self._occupy(self._free(workspace.arena_bytes, position), workspace.arena_bytes, position).regions.append(
                workspace
            )

    def _liveness(self) -> None:
        for position, node in enumerate(self._order):
            for name in self._roots((*self._graph.inputs_of(node), *self._graph.outputs_of(node))):
                self._first.setdefault(name, position)
                self._last[name] = position

    def lifetimes(self) -> dict[str, tuple[int, int]]:
        self._liveness()
        return {name: (first, self._last[name]) for name, first in self._first.items()}

    def _roots(self, names: Iterable[str | None]) -> list[str]:
        """The buffers behind ``names`` that live in the arena."""
        roots = dict.fromkeys(self._graph.root(n)[0] for n in names if n is not None)
        return [r for r in roots if self._graph.desc(r).transient and r not in self._elsewhere]

    def _assign(self, name: str, position: int, node: Any) -> None:
        size = aligned_bytes(self._graph, name)
        slot = self._in_place(name, position, node) if self._reuse else None
        slot = self._occupy(slot or self._free(size, position), size, self._last[name])
        slot.buffers.append(name)
        self._slot_of[name] = slot

    def _occupy(self, slot: _Slot | None, size: Dim, last: int) -> _Slot:
        """``slot`` (None: a new one), grown to ``size`` and in use until node ``last`` has run."""
        if slot is None:
            slot = _Slot(size, _hint(size), 0, [])
            self._slots.append(slot)
        slot.bytes = _larger(slot.bytes, size)
        slot.hint = max(slot.hint, _hint(size))
        slot.free_after = max(slot.free_after, last)
        return slot

    def _free(self, size: Dim, position: int) -> _Slot | None:
        """The smallest free slot that holds ``size``; else the largest free slot, to be grown; else None."""
        free = [s for s in self._slots if s.free_after < position] if self._reuse else []
        if not free:
            return None
        wanted = _hint(size)
        fitting = [s for s in free if s.hint >= wanted]
        if fitting:
            return min(fitting, key=lambda s: s.hint)
        largest = max(free, key=lambda s: s.hint)
        return largest if 2 * largest.hint >= wanted else None

    def _in_place(self, name: str, position: int, node: Any) -> _Slot | None:
        if not isinstance(node, nodes.MapEntry):
            return None
        dying = [
            r
            for r in self._roots(self._graph.inputs_of(node))
            if self._last[r] == position and r in self._slot_of and self._slot_of[r].free_after == position
        ]
        dying = [r for r in dying if aligned_bytes(self._graph, r) == aligned_bytes(self._graph, name)]
        if not dying:
            return None
        kernel = Kernel.extract(self._graph, node)
        chosen = next((r for r in dying if _same_elements(self._graph, kernel, r, name)), None)
        return None if chosen is None else self._slot_of[chosen]


def _workspace(inner: Inner) -> MemoryPlan:
    """Carried values, then the bodies, of which one at a time runs: they overlap."""
    result = MemoryPlan()
    for buffer in inner.carried:
        result.arena[buffer.name] = result.arena_bytes
        result.arena_bytes = dim(result.arena_bytes + _bytes(buffer))
    start = result.arena_bytes
    for scope in inner.scopes:
        body = _Planner(scope, set(), scope.graph.options.reuse_memory).place(MemoryPlan())
        result.arena |= {name: dim(start + offset) for name, offset in body.arena.items()}
        result.arena_bytes = _larger(result.arena_bytes, dim(start + body.arena_bytes))
    return result


def _bytes(buffer: FrameBuffer) -> Dim:
    return _aligned(buffer.elements, buffer.dtype)


def _same_elements(graph: Graph, kernel: Kernel, source: str, target: str) -> bool:
    """Every iteration reads of ``source`` only the very bytes that it writes of ``target``, its one and unreduced
    result.

    With a second result, the compiler, which is told that arrays do not overlap, might read again after the write.
    """
    if len(kernel.stages) != 1 or len(kernel.stages[0].writes) != 1 or graph.dtype(source) != graph.dtype(target):
        return False
    stage = kernel.stages[0]
    writes = [a for a in stage.writes.values() if graph.root(a.array)[0] == target]
    reads = [a for a in stage.reads.values() if graph.root(a.array)[0] == source]
    if any(a.wcr for a in stage.writes.values()) or len(writes) != 1:
        return False
    return all(same_elements(graph, writes[0], a) for a in reads)


def _hint(size: Dim) -> int:
    if isinstance(size, int):
        return size
    return int(size.xreplace({s: sympy.Integer(HINT) for s in size.free_symbols}))


def _larger(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return a if a == b else sympy.Max(a, b)
