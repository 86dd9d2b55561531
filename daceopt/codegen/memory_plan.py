"""Plans memory before the first call: which buffers share a place in the arena, where saved arrays are."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import sympy

from daceopt.codegen.in_place import overwritable
from daceopt.codegen.lending import SAVED_BLOCK, Lender, Loan, lenders, lifetimes
from daceopt.codegen.offsets import Span, least_bytes, offsets
from daceopt.codegen.regions import Inner, Scope
from daceopt.ir.access.dataflow import same_elements
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim, hint

ALIGNMENT = 64
_ARENA = "the arena"  # as the owner of a place; no array is called so


@dataclass
class MemoryPlan:
    """Byte offsets, multiples of 64, as ints or expressions over the graph's size symbols.

    ``arena``: transient buffer -> offset in the arena of ``arena_bytes``; ``saved``: saved array -> offset in the block
    of ``saved_bytes``; ``lent``: transient buffers in memory that is a result's, or a saved array's, at other times.
    Inputs, outputs and constants are in none. Buffers inside of regions have the names that they have in the frame.
    ``over``: buffer -> the one in whose bytes its writer puts it.
    """

    arena: dict[str, Dim] = field(default_factory=dict)
    saved: dict[str, Dim] = field(default_factory=dict)
    lent: dict[str, Loan] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    arena_bytes: Dim = 0
    saved_bytes: Dim = 0


@dataclass(frozen=True)
class Resident:
    """A buffer, or the workspace of the region ``name``, from the node at ``first`` to that at ``last``; what is
    written in place takes the bytes over. It is in the arena, or in memory that is ``lent_by`` the saved block or a
    result."""

    name: str
    first: int
    last: int
    bytes: Dim
    lent_by: str | None = None


@dataclass
class _Block:
    """Buffers that are in the same bytes, one after the other in place, or the workspace of a region."""

    bytes: Dim
    first: int  # position of the first node that uses it
    last: int
    buffers: list[str] = field(default_factory=list)
    regions: list[MemoryPlan] = field(default_factory=list)


@dataclass
class _Slot:
    """A place in the arena, which blocks take in turn: in the order of time."""

    bytes: Dim
    blocks: list[_Block] = field(default_factory=list)

    def is_free(self, block: _Block) -> bool:
        before = bisect_right(self.blocks, block.last, key=lambda b: b.first)
        return not before or self.blocks[before - 1].last < block.first

    def take(self, block: _Block) -> None:
        self.bytes = _larger(self.bytes, block.bytes)
        insort(self.blocks, block, key=lambda b: b.first)


def plan(
    graph: Graph,
    saved: Sequence[str] = (),
    *,
    reuse: bool = True,
    order: Sequence[Node] | None = None,
    lending: bool = False,
) -> MemoryPlan:
    """Place every transient root buffer of ``graph``; two share a slot when no node needs both.

    The order is that of ``graph.nodes()``, in which the frame executes them, unless another is asked about. An
    element-wise kernel may write where an input that dies there is, when it reads and writes the same element in
    each iteration. ``saved`` (arrays that a later program reads) are laid out by their order alone, so forward and
    backward agree. What is inside of a region shares one slot, which is in use while the region runs. With
    ``lending``, buffers also stand in results that are not written yet, and among ``saved`` where these are not written
    yet or were read for the last time: a backward overwrites what it was left.
    """
    places, size = saved_offsets(graph, saved)
    result = MemoryPlan(saved=places, saved_bytes=size)
    owners = _owners(graph, result.saved, order) if lending and reuse else []
    return _Planner(Scope(graph), set(result.saved), reuse, order, owners).place(result)


def least_arena(graph: Graph, saved: Sequence[str], order: Sequence[Node]) -> int | None:
    """Bytes below which no plan of ``order`` with ``lending`` stays; None where sizes are open. Takes a fraction of the
    time of a plan."""
    places, _ = saved_offsets(graph, saved)
    return _Planner(Scope(graph), set(places), True, order, _owners(graph, places, order)).least()


def as_built(graph: Graph) -> MemoryPlan:
    """The plan that ``graph`` is built with."""
    return plan(graph, graph.saved, reuse=graph.options.reuse_memory, lending=True)


def residents_as_built(graph: Graph) -> list[Resident]:
    """What is where in that plan."""
    return residents(graph, graph.saved, reuse=graph.options.reuse_memory, lending=True)


def residents(graph: Graph, saved: Sequence[str] = (), *, reuse: bool = True, lending: bool = False) -> list[Resident]:
    """What is where and when, as ``plan`` places it; saved arrays while they are needed, all the time where nobody
    else may be there."""
    places, _ = saved_offsets(graph, saved)
    owners = _owners(graph, places, None) if lending and reuse else []
    shared = any(owner.name == SAVED_BLOCK for owner in owners)
    end = len(graph.nodes()) - 1
    times = lifetimes(graph, saved, graph.nodes()) if shared else dict.fromkeys(saved, (0, end))
    held = (Resident(n, max(i, 0), min(k, end), aligned_bytes(graph, n), SAVED_BLOCK) for n, (i, k) in times.items())
    return [*_Planner(Scope(graph), set(saved), reuse, None, owners).residents(), *held]


def _owners(graph: Graph, places: dict[str, Dim], order: Sequence[Node] | None) -> list[Lender]:
    return lenders(graph, places, {n: aligned_bytes(graph, n) for n in places}, order)


def saved_offsets(graph: Graph, saved: Sequence[str]) -> tuple[dict[str, Dim], Dim]:
    """Where each of the arrays ``saved`` is in the saved block, and the bytes of the block."""
    places: dict[str, Dim] = {}
    size: Dim = 0
    for name in saved:
        places[name] = size
        size = dim(size + aligned_bytes(graph, name))
    return places, size


def aligned_bytes(graph: Graph, name: str) -> Dim:
    """Bytes of the buffer ``name``, rounded up to whole cache lines."""
    return _align(graph.desc(name).total_size, graph.dtype(name))


def _align(elements: Dim, dtype: types.DType) -> Dim:
    size = dim(elements * types.itemsize(dtype))
    if isinstance(size, int):
        return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
    return ALIGNMENT * sympy.floor((size + ALIGNMENT - 1) / ALIGNMENT)


class _Planner:
    def __init__(
        self,
        scope: Scope,
        elsewhere: set[str],
        reuse: bool,
        order: Sequence[Node] | None = None,
        owners: Sequence[Lender] = (),
    ):
        self._scope, self._reuse, self._owners = scope, reuse, owners
        self._graph = graph = scope.graph
        self._order = graph.nodes() if order is None else order
        self._elsewhere = elsewhere
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._blocks: list[_Block] = []
        self._block_of: dict[str, _Block] = {}
        self._bytes_of: dict[str, Dim] = {}

    def place(self, result: MemoryPlan) -> MemoryPlan:
        """Add the buffers of the scope to ``result``."""
        self._block_all()
        places, end = self._places()
        result.over |= {new: old for block in self._blocks for old, new in pairwise(block.buffers)}
        for block, loan in places:
            names = {self._scope.prefix + name: loan.offset for name in block.buffers}
            names |= {n: dim(loan.offset + at) for inner in block.regions for n, at in inner.arena.items()}
            if loan.owner == _ARENA:
                result.arena |= {name: dim(result.arena_bytes + at) for name, at in names.items()}
            else:
                result.lent |= {name: Loan(loan.owner, at) for name, at in names.items()}
        result.arena_bytes = dim(result.arena_bytes + end)
        return result

    def least(self) -> int | None:
        """What is alive at one position and has no place in lent memory; None where sizes are open."""
        self._block_all()
        spans = [Span(b.bytes, b.first, b.last) for b in self._blocks if isinstance(b.bytes, int)]
        rooms = [lender.room for lender in self._owners]
        return least_bytes(spans, rooms) if len(spans) == len(self._blocks) else None

    def _places(self) -> tuple[list[tuple[_Block, Loan]], Dim]:
        """The place of each block, and the end of the arena: anywhere where sizes are known, else in whole slots."""
        spans = [Span(b.bytes, b.first, b.last) for b in self._blocks if isinstance(b.bytes, int)]
        if self._reuse and len(spans) == len(self._blocks):
            places, end = offsets(spans, [lender.room for lender in self._owners])
            loans = [Loan(_ARENA if p.room is None else self._owners[p.room].name, p.offset) for p in places]
            return list(zip(self._blocks, loans, strict=True)), end
        blocks: list[tuple[_Block, Loan]] = []
        total: Dim = 0
        for slot in self._slots():
            blocks += [(block, Loan(_ARENA, total)) for block in slot.blocks]
            total = dim(total + slot.bytes)
        return blocks, total

    def _block_all(self) -> None:
        self._liveness()
        for position, node in enumerate(self._order):
            born = [n for n in self._roots(self._graph.outputs_of(node)) if self._first.get(n) == position]
            dying = self._dying(position, self._graph.inputs_of(node)) if born and self._reuse else []
            for name in born:
                self._add(name, position, node, dying)
            if node in self._scope.inner:
                self._add_region(self._scope.inner[node], position)

    def _add_region(self, inner: Inner, position: int) -> None:
        workspace = _workspace(inner)
        if workspace.arena:
            self._blocks.append(_Block(workspace.arena_bytes, position, position, regions=[workspace]))

    def _add(self, name: str, position: int, node: Node, dying: Sequence[str]) -> None:
        """A block for ``name``, which ``node`` writes: that of one of its inputs ``dying`` there, or another."""
        block = self._in_place(name, position, node, dying) if self._reuse else None
        if block is None:
            block = _Block(self._bytes(name), position, position)
            self._blocks.append(block)
        block.last = self._last[name]
        block.buffers.append(name)
        self._block_of[name] = block

    def _slots(self) -> list[_Slot]:
        """Large blocks choose first, so that no small one keeps them from a place; each takes the smallest slot that is
        free while it is needed. Pisarchyk and Lee, Efficient memory management for deep neural net inference (2020),
        section 4: greedy by size."""
        slots: list[_Slot] = []
        for block in sorted(self._blocks, key=lambda b: -hint(b.bytes)):
            free = [s for s in slots if self._reuse and s.is_free(block)]
            if not free:
                slots.append(_Slot(block.bytes))
            slot = min(free, key=lambda s: hint(s.bytes)) if free else slots[-1]
            slot.take(block)
        return slots

    def _liveness(self) -> None:
        for position, node in enumerate(self._order):
            for name in self._roots((*self._graph.inputs_of(node), *self._graph.outputs_of(node))):
                self._first.setdefault(name, position)
                self._last[name] = position

    def residents(self) -> list[Resident]:
        self._block_all()
        result: list[Resident] = []
        for block, loan in self._places()[0]:
            owner = None if loan.owner == _ARENA else loan.owner
            names = block.buffers or [label_of(self._order[block.first])]
            starts = [self._first.get(n, block.first) for n in names]
            ends = [*(start - 1 for start in starts[1:]), block.last]
            result += [Resident(n, i, k, block.bytes, owner) for n, i, k in zip(names, starts, ends, strict=True)]
        return result

    @property
    def _says_overlaps(self) -> bool:
        """Do the kernels get to know which of their arrays overlap? Those of bodies do not."""
        return not self._scope.prefix and self._graph.options.target == "cpu"

    def _roots(self, names: Iterable[str | None]) -> list[str]:
        """The buffers behind ``names`` that live in the arena."""
        roots = dict.fromkeys(self._graph.root(n)[0] for n in names if n is not None)
        return [r for r in roots if self._graph.is_transient(r) and r not in self._elsewhere]

    def _bytes(self, name: str) -> Dim:
        if name not in self._bytes_of:
            self._bytes_of[name] = aligned_bytes(self._graph, name)
        return self._bytes_of[name]

    def _dying(self, position: int, operands: Iterable[str | None]) -> list[str]:
        """The buffers behind ``operands`` that are read there for the last time, and that have a block."""
        return [r for r in self._roots(operands) if self._last[r] == position and r in self._block_of]

    def _in_place(self, name: str, position: int, node: Node, dying: Sequence[str]) -> _Block | None:
        if not isinstance(node, KernelNode):
            dying = self._dying(position, overwritable(self._graph, node, name))
        size = self._bytes(name) if dying else 0
        dying = [r for r in dying if self._block_of[r].buffers[-1] == r and self._bytes(r) == size]
        if not dying:
            return None
        if not isinstance(node, KernelNode):
            return self._block_of[dying[0]]
        kernel = node.kernel
        alone = not self._says_overlaps
        chosen = next((r for r in dying if _same_elements(self._graph, kernel, r, name, alone)), None)
        return None if chosen is None else self._block_of[chosen]


def _workspace(inner: Inner) -> MemoryPlan:
    """Carried values, then the bodies, of which one at a time runs: they overlap."""
    result = MemoryPlan()
    for buffer in inner.carried:
        result.arena[buffer.name] = result.arena_bytes
        result.arena_bytes = dim(result.arena_bytes + _align(buffer.elements, buffer.dtype))
    start = result.arena_bytes
    for scope in inner.scopes:
        body = _Planner(scope, set(), scope.graph.options.reuse_memory).place(MemoryPlan())
        result.arena |= {name: dim(start + offset) for name, offset in body.arena.items()}
        result.arena_bytes = _larger(result.arena_bytes, dim(start + body.arena_bytes))
    return result


def _same_elements(graph: Graph, kernel: Kernel, source: str, target: str, alone: bool) -> bool:
    """Every iteration reads of ``source`` only the very bytes that it writes of ``target``, and does not reduce there.

    Where it has other results as well, which may not be with ``alone``, the compiler has to be told which arrays
    overlap (``MemoryPlan.over``): else it might read again after the write.
    """
    if len(kernel.stages) != 1 or graph.dtype(source) != graph.dtype(target):
        return False
    stage = kernel.stages[0]
    if alone and len(stage.writes) != 1:
        return False
    writes = [a for a in stage.writes.values() if graph.root(a.array)[0] == target]
    reads = [a for a in stage.reads.values() if graph.root(a.array)[0] == source]
    if len(writes) != 1 or writes[0].wcr:
        return False
    return all(same_elements(graph, writes[0], a) for a in reads)


def _larger(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if a == b:
        return a
    largest = list(_candidates(a))  # none of which is at least another
    for size in _candidates(b):
        if not any(_is_at_least(other, size) for other in largest):
            largest = [*(other for other in largest if not _is_at_least(size, other)), size]
    # SymPy would compare all pairs by what it can find out of floors: minutes, for nothing
    return largest[0] if len(largest) == 1 else sympy.Max(*map(sympy.sympify, largest), evaluate=False)


def _candidates(size: Dim) -> Sequence[Dim]:
    return size.args if isinstance(size, sympy.Max) else (size,)


def _is_at_least(a: Dim, b: Dim) -> bool:
    """Is ``a`` never less than ``b``, as their terms show? Sizes, and so products of them, are not negative."""
    more, less = _terms(a), _terms(b)
    differences = ((term, more.get(term, 0) - less.get(term, 0)) for term in {**more, **less})
    return all(factor >= 0 and (not factor or term.is_polynomial()) for term, factor in differences)


@lru_cache(maxsize=4096)
def _terms(size: Dim) -> dict[sympy.Expr, sympy.Expr]:
    """The coefficient of each term, before rounding."""
    return dict(sympy.expand(_before_rounding(size)).as_coefficients_dict())


def _before_rounding(size: Dim) -> sympy.Expr:
    """What is rounded down to whole cache lines, in these; more of it is never fewer of them."""
    lines = sympy.sympify(size) / ALIGNMENT
    return lines.args[0] if isinstance(lines, sympy.floor) else lines
