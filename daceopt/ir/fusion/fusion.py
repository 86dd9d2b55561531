"""Merging two kernels into one over their common iteration space, on address functions only (no operator names)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from math import prod

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.access.dataflow import Address, address, same_elements
from daceopt.ir.access.iteration import apart, rename, unify
from daceopt.ir.data.provenance import fused_label
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment, substitute, symbol_like
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.types import DType

MAX_LOCAL_ELEMENTS = 16384  # a row buffer of 64 KiB in float32: stays in the first two cache levels


def merge(graph: Graph, first: Kernel, second: Kernel, needed: Callable[[str], bool]) -> Kernel | str:
    """One kernel that does what ``first`` and then ``second`` do, or the reason why there is none.

    ``needed(array)`` says whether anything but these two kernels reads ``array`` (or any view of it). The kernels share
    at least one buffer: written by the first and read by the second, or read by both. The caller has checked that no
    path leads from ``first`` to ``second`` through other nodes. Locals are in the form of :func:`expand_locals`.
    """
    return merge_with_locals(graph, first, second, needed)[0]


def merge_with_locals(
    graph: Graph, first: Kernel, second: Kernel, needed: Callable[[str], bool]
) -> tuple[Kernel | str, dict[str, str]]:
    """What :func:`merge` gives, and array of the graph -> the local that has its values there."""
    shared = _shared_address(graph, first, second)
    if shared is None:
        return "no shared access with an affine address", {}
    address_1, address_2 = shared
    different = f"{address_1.buffer} is walked differently by {first.label} and {second.label}"
    if dim(address_1.constant - address_2.constant) != 0:  # before anything is renamed
        return different, {}
    second = apart(second, first)
    address_2 = _by_buffer(graph, second.reads()).get(address_1.buffer) or address_2
    unified = unify(first, address_1, second, address_2)
    if unified is None:
        return different, {}
    first, second, mapping = unified
    _align_rest(graph, first, second, mapping)
    merger = _Merger(graph, first, rename(second, mapping), needed)
    reason = merger.keep_inside()
    if reason is not None:
        return reason, {}
    merged = merger.kernel()
    if not merged.outer and any(s.params for s in merged.stages):
        return f"{first.label} and {second.label} have no common parallel parameter", {}
    return _too_large(merged) or merged, merger.locals_of


def _shared_address(graph: Graph, first: Kernel, second: Kernel) -> tuple[Address, Address] | None:
    """The addresses to unify: in a buffer that ``first`` writes if there is one, and there with most parameters."""
    reads = _by_buffer(graph, second.reads())
    best = None
    for accesses in (first.writes(), first.reads()):
        for buffer, mine in _by_buffer(graph, accesses).items():
            theirs = reads.get(buffer)
            if theirs is None or (best is not None and len(mine.terms) <= len(best[0].terms)):
                continue
            best = (mine, theirs)
        if best is not None:
            return best
    return None


def _by_buffer(graph: Graph, accesses: Sequence[Access]) -> dict[str, Address]:
    addresses: dict[str, Address] = {}
    for access in accesses:
        where = address(graph, access)
        previous = addresses.get(where.buffer) if where is not None else None
        if where is not None and (previous is None or len(where.terms) >= len(previous.terms)):
            addresses[where.buffer] = where
    return addresses


def _align_rest(graph: Graph, first: Kernel, second: Kernel, mapping: dict[sympy.Symbol, sympy.Symbol]) -> None:
    """Give the second's other parameters the first's names too where both walk a common buffer alike.

    Names decide nothing about legality, but stages that use one name can share a loop, and two reads of one array can
    be seen to be alike.
    """
    addresses = {**_by_buffer(graph, first.reads()), **_by_buffer(graph, first.writes())}
    for access in second.reads():
        theirs = address(graph, access)
        mine = None if theirs is None else addresses.get(theirs.buffer)
        if theirs is None or mine is None:
            continue
        matched = {mapping.get(q) for q in access.params()}
        param_of = {step: p for p, step in mine.terms if p not in matched}
        for q, step in theirs.terms:
            p = param_of.get(step)
            if p is None or q in mapping or first.extents[p] != second.extents[q]:
                continue
            if p not in {mapping.get(o) for s in second.stages if q in s.params for o in s.params}:
                mapping[q] = p


class _Merger:
    """The statements of ``first`` and then ``second``, over one iteration space already, as one kernel."""

    def __init__(self, graph: Graph, first: Kernel, second: Kernel, needed: Callable[[str], bool]):
        self._graph, self._first, self._second, self._needed = graph, first, second, needed
        self._extents = {**first.extents, **second.extents}
        self._stages = [*first.stages, *second.stages]
        self._indices = _written_indices(self._stages)
        self._locals = {**first.locals, **second.locals}
        self._copied = copies(first)
        self.locals_of = dict(self._copied)  # array of the graph -> the local that has its values

    def kernel(self) -> Kernel:
        """What has come of it so far."""
        label = fused_label(self._first.label, self._second.label)
        merged = Kernel(label, self._extents, tuple(self._stages), (), self._locals)
        return replace(merged, outer=common_parameters(merged))

    def keep_inside(self) -> str | None:
        """Turn every array that the first writes and the second reads into a local one; None, or why that is
        impossible."""
        own, begin = self._first.locals, len(self._first.stages)
        writers = {a.array: (s, c) for s in self._first.stages for c, a in s.writes.items() if a.array not in own}
        for k, stage in enumerate(self._second.stages, begin):
            for conn, access in stage.reads.items():
                sources = [] if access.array in self._locals else self._graph.sources(access.array)
                if writers.keys().isdisjoint(sources):
                    continue
                if len(sources) > 1:
                    return f"{access.array} is written in parts, of which {self._first.label} writes some"
                producer, out = writers[sources[0]]
                reason = _same_walk(self._graph, producer.writes[out], access)
                if reason is not None:
                    return reason
                self._stages[k] = self._read_locally(self._stages[k], conn, producer, out)
        self._stages[:begin] = [self._write_locally(stage) for stage in self._first.stages]
        return None

    def _read_locally(self, stage: Stage, conn: str, producer: Stage, out: str) -> Stage:
        """``stage`` reads at ``conn`` the local copy of what ``producer`` writes at ``out``."""
        read, written = stage.reads[conn].array, producer.writes[out]
        local = self._local_copy(written)
        is_stored = self._needed(written.array) or written.array in self._copied
        if is_stored and not _is_rounded(self._graph, producer, out):
            stage = _rounding(stage, conn, self._graph.dtype(read))
        return replace(stage, reads={**stage.reads, conn: local})

    def _local_copy(self, write: Access) -> Access:
        """The local array that stands for ``write``'s array: indexed by the parameters of the write, one dimension
        each."""
        name = self.locals_of.get(write.array) or fresh_local(self._graph, write.array, self._locals)
        self.locals_of[write.array] = name
        if name in self._indices:  # an earlier merge made it, when the parameters may have stood in another order
            return Access(name, self._indices[name])
        params = tuple(p for p in self._extents if p in write.params())
        shape = tuple(self._extents[p] for p in params)
        self._locals[name] = (types.compute_type(self._graph.dtype(write.array)), shape)
        return Access(name, params)

    def _write_locally(self, stage: Stage) -> Stage:
        locals_ = {a.array: self._local_copy(a) for a in stage.writes.values() if a.array in self.locals_of}
        return written_to_locals(stage, locals_, self._needed)


def fresh_local(graph: Graph, array: str, names_in_use: Collection[str]) -> str:
    """A name for a local that has the values of ``array``: one that neither the graph nor ``names_in_use`` has."""
    names = chain([f"{array}_l"], (f"{array}_l{k}" for k in count(2)))
    return next(n for n in names if n not in names_in_use and graph.is_free(n))


def written_to_locals(stage: Stage, locals_: Mapping[str, Access], needed: Callable[[str], bool]) -> Stage:
    """The statement with writes of ``locals_`` (by the arrays that they stand for) in the place of those of the arrays:
    beside them where somebody else needs these."""
    for connector, access in stage.writes.items():
        if access.array not in locals_:
            continue
        local = replace(locals_[access.array], wcr=access.wcr)
        is_copied = any(other.array == local.array for other in stage.writes.values())  # by an earlier fusion
        if needed(access.array):
            stage = stage if is_copied else stage.writing_twice(connector, local)
        elif is_copied:
            stage = replace(stage, writes={c: a for c, a in stage.writes.items() if c != connector})
        else:
            stage = replace(stage, writes={**stage.writes, connector: local})
    return stage


def _is_rounded(graph: Graph, stage: Stage, conn: str) -> bool:
    """Whether what the stage writes there is what memory holds of it."""
    dtype = graph.dtype(stage.writes[conn].array)
    expr = next(a.expr for a in stage.assignments if str(a.symbol) == conn)
    if not types.is_narrow(dtype):
        return True
    return expr.func is scalar.cast(sympy.Symbol("x"), dtype).func and not stage.writes[conn].wcr


def _rounding(stage: Stage, conn: str, dtype: DType) -> Stage:
    """The stage with what it reads there as memory holds it: others read that, and a value is the same to all."""
    symbols = {s for a in stage.assignments for s in a.free_symbols if s.name == conn}
    rounded = {s: scalar.cast(s, dtype) for s in symbols}
    return replace(stage, assignments=tuple(a.subs(rounded) for a in stage.assignments))


def _same_walk(graph: Graph, write: Access, read: Access) -> str | None:
    if address(graph, write) is None or address(graph, read) is None:
        return f"{read.array} is read at a run-time index"
    same = same_elements(graph, write, read)
    same = same and write.params() <= read.params()  # strides of an empty array may be 0
    return None if same else f"{read.array} is read at other elements than the iteration writes"


def copies(kernel: Kernel) -> dict[str, str]:
    """Array of the graph -> the local to which a statement writes the same value: for readers in the kernel, while
    others read the array."""
    sources: dict[str, str] = {}
    for stage in kernel.stages:
        values = {a.symbol.name: a.expr.name for a in stage.assignments if isinstance(a.expr, sympy.Symbol)}
        for conn, access in stage.writes.items():
            source = stage.writes.get(values.get(conn, ""))
            if access.array in kernel.locals and source is not None and source.array not in kernel.locals:
                sources[source.array] = access.array
    return sources


def common_parameters(kernel: Kernel) -> tuple[sympy.Symbol, ...]:
    """Parameters that can be shared parallel loops: in every stage's domain, and no local result is reduced over
    them."""
    reads = [a for s in kernel.stages for a in s.reads.values() if a.array in kernel.locals]
    indices = _written_indices(kernel.stages)
    index = {a.array: indices.get(a.array, ()) for a in reads}
    writes = [(s, c) for s in kernel.stages for c, a in s.writes.items() if a.array in index]
    carried = {p for access in reads for p in _read_elsewhere(access, index[access.array])}
    reduced = {p for stage, connector in writes for p in stage.reduced_params(connector)}
    shared = set(kernel.extents).intersection(*(s.params for s in kernel.stages)) - carried - reduced
    return tuple(p for p in kernel.extents if p in shared)


def _read_elsewhere(read: Access, written: tuple[Dim | None, ...]) -> set[sympy.Symbol]:
    """Parameters along which a local array is read at other elements than the same iteration writes."""
    pairs = zip(read.index, written)
    return {s for e, w in pairs if e != w for x in (e, w) for s in getattr(x, "free_symbols", ())}


def _too_large(kernel: Kernel) -> str | None:
    for name, size in local_elements(kernel).items():
        if not isinstance(size, int) or size > MAX_LOCAL_ELEMENTS:
            return f"{name} needs {size} elements per iteration of the shared loops, more than {MAX_LOCAL_ELEMENTS}"
    return None


def local_elements(kernel: Kernel) -> dict[str, Dim]:
    """Local -> its elements in one iteration of the shared loops. Locals are in the form of :func:`expand_locals`."""
    indices = _written_indices(kernel.stages)
    return {
        name: prod(n for n, e in zip(shape, indices.get(name, ())) if e not in kernel.outer)
        for name, (_, shape) in kernel.locals.items()
    }


def _written_indices(stages: Sequence[Stage]) -> dict[str, tuple[Dim | None, ...]]:
    """Array -> where the first statement that writes it does so."""
    indices: dict[str, tuple[Dim | None, ...]] = {}
    for access in (a for s in stages for a in s.writes.values()):
        indices.setdefault(access.array, access.index)
    return indices


def shrink_locals(kernel: Kernel) -> Kernel:
    """The form that is emitted: locals live inside one iteration of the outer loops, whose parameters leave their
    indices."""
    written = _written_indices(kernel.stages)
    outer_axes = {n: [k for k, e in enumerate(written.get(n, ())) if e in kernel.outer] for n in kernel.locals}
    return kernel.without_dimensions(outer_axes)


def expand_locals(kernel: Kernel) -> Kernel:
    """The form that is merged: locals are indexed by the outer parameters too, so that ``outer`` may change.

    Raises Unsupported for a kernel that carries values along a loop, whose tiles may be partial, or that reads an array
    which it writes.
    """
    if kernel.is_tiled:
        raise Unsupported(f"{kernel.label} is tiled: its stages are no loops over rectangles")
    if kernel.forwarded_arrays():
        raise Unsupported(f"{kernel.label} reads what it writes: its stages share no iterations")
    lead = tuple(kernel.extents[p] for p in kernel.outer)
    shapes = {n: (t, (*lead, *shape)) for n, (t, shape) in kernel.locals.items()}

    def expand(access: Access) -> Access:
        return replace(access, index=(*kernel.outer, *access.index)) if access.array in shapes else access

    stages = [s.with_accesses(expand) for s in kernel.stages]
    return Kernel(kernel.label, kernel.extents, stages, kernel.outer, shapes)


def collapse(kernel: Kernel) -> Kernel | None:
    """One stage that does what all stages of an element-wise chain do, the locals in between becoming scalars.

    None unless all stages have one domain, nothing local is reduced, and locals are read where they are written. Locals
    are in the form of :func:`expand_locals`.
    """
    domain = set(kernel.stages[0].params)
    if any(set(s.params) != domain for s in kernel.stages):
        return None
    if any(a.wcr and a.array in kernel.locals for s in kernel.stages for a in s.writes.values()):
        return None
    read = [a for s in kernel.stages for a in s.reads.values() if a.array in kernel.locals]
    written = _written_indices(kernel.stages)
    if any(written.get(a.array) != a.index for a in read):
        return None
    merged = _Collapsed(kernel)
    for stage in kernel.stages:
        merged.append(stage)
    stage = Stage(kernel.stages[-1].params, merged.reads, merged.writes, tuple(merged.assignments))
    return Kernel(kernel.label, kernel.extents, [stage])


class _Collapsed:
    """Accumulates the stages' assignments under new names."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.reads: dict[str, Access] = {}
        self.writes: dict[str, Access] = {}
        self.assignments: list[Assignment] = []
        self.values: dict[str, sympy.Symbol] = {}  # local array -> the scalar that holds it

    def append(self, stage: Stage) -> None:
        names = {c: self._read(a) for c, a in stage.reads.items()}
        mapping: dict[sympy.Symbol, sympy.Expr] = {}
        for assignment in stage.assignments:
            for symbol in assignment.free_symbols - mapping.keys():
                if symbol.name in names:
                    mapping[symbol] = symbol_like(symbol, names[symbol.name])
            target = symbol_like(assignment.symbol, self._target(stage, assignment.symbol.name))
            self.assignments.append(Assignment(target, substitute(assignment.expr, mapping), assignment.dtype))
            mapping[assignment.symbol] = target

    def _read(self, access: Access) -> str:
        if access.array in self.values:
            return str(self.values[access.array])
        for conn, other in self.reads.items():
            if other == access:
                return conn
        conn = f"in{len(self.reads)}"
        self.reads[conn] = access
        return conn

    def _target(self, stage: Stage, name: str) -> str:
        access = stage.writes.get(name)
        if access is None or access.array in self.kernel.locals:
            target = f"t{len(self.assignments)}"
            if access is not None:
                self.values[access.array] = sympy.Symbol(target)
            return target
        target = f"out{len(self.writes)}"
        self.writes[target] = access
        return target
