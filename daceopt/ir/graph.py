"""The graph that every room works on: one SDFG with one state in SSA form, and quick answers to who writes and reads
what."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, TypeAlias

import dace
import numpy as np
import sympy
from dace import nodes
from dace.memlet import Memlet
from dace.sdfg.nodes import MapEntry, Node

from daceopt.ir import types
from daceopt.ir.operands import Operands
from daceopt.ir.provenance import Maker, Origins, joined
from daceopt.ir.views import rebase

Dim: TypeAlias = int | sympy.Expr
Shape = tuple[Dim, ...]

SEED = "rng_seed"
_SEED_WORDS = 1
_MAX_HINT = 30


def dim(value: Any) -> Dim:
    """An extent in its canonical form: ``int`` when it is a number, else a SymPy expression."""
    if isinstance(value, (int, np.integer)):
        return int(value)
    value = sympy.sympify(value)
    return int(value) if value.is_Integer else value


def _in_order(node: Node, kind: str, by_connector: dict[str, str]) -> Operands:
    """Operators number their operands; other nodes have them sorted and unique."""
    owner = f"{kind}s of {getattr(node, 'op_type', '') or type(node).__name__} {getattr(node, 'label', '')!r}"
    positions = getattr(node, f"{kind}_connectors", None)
    if positions is not None:
        return Operands([by_connector.get(c) for c in positions], owner)
    return Operands(sorted(set(by_connector.values())), owner)


def row_major(shape: Sequence[Dim]) -> Shape:
    """Contiguous strides, in elements, of ``shape``. An extent of 0 counts as 1: strides of 0 would be broadcasts."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        strides.append(step)
        step = dim(step * (1 if extent == 0 else extent))
    return tuple(reversed(strides))


def _in_rows(shape: Sequence[Dim], strides: Sequence[Dim]) -> bool:
    return 0 in shape or all(n == 1 or s == t for n, s, t in zip(shape, strides, row_major(shape)))


class Graph:
    """One SDFG with one state; see docs/architecture.md for the invariants.

    ``inputs`` and ``outputs`` are array names in call order; ``constants`` maps arrays to values known at compile time;
    ``symbols`` maps a size symbol to the ``(input name, axis)`` that defines it. All changes go through the methods
    below, which keep the def-use tables.
    """

    def __init__(self, name: str = "program"):
        self.sdfg = dace.SDFG(_clean(name) or "program")
        self.state = self.sdfg.add_state("main", is_start_block=True)
        # without it DaCe inspects the whole Python call stack for each access node: up to 60 ms
        self.state.set_default_lineinfo(dace.dtypes.DebugInfo(0))
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.constants: dict[str, np.ndarray] = {}
        self.symbols: dict[str, tuple[str, int]] = {}
        self.source_names: dict[str, str] = {}
        self.origins: dict[str, Origins] = {}  # array -> where in the model it is computed, where that is known
        self.maker = Maker()  # whose nodes and arrays are being added: see made_for
        self.opset: dict[str, int] = {}  # operator domain -> version
        # contents of integer arrays that are functions of the size symbols
        self.shape_values: dict[str, tuple[Dim, ...]] = {}
        self.assumptions: list[sympy.Expr] = []  # polynomials over sizes that are 0 or more in every call
        self.speculative = False  # may shapes be made simpler by further assumptions?
        self.trips: dict[str, int] = {}  # counters of loops around this body -> iterations at most, where known
        self.saved: list[str] = []  # arrays that a forward graph leaves for its backward graph
        self.reuse_memory = False  # may arrays that are never alive together share memory?
        self.scalars: set[str] = set()  # arrays of logical rank 0, stored with shape (1,)
        self._views: dict[str, tuple[str, Dim]] = {}
        self._access: dict[str, nodes.AccessNode] = {}
        self._compute: dict[Node, nodes.MapExit | None] = {}  # top-level compute nodes; kernels with their exit
        self._entries: dict[nodes.MapExit, MapEntry] = {}
        self.schedules: dict[MapEntry, Any] = {}  # kernels that are scheduled -> their ir.schedule.Tree
        self.extracted: dict[MapEntry, Any] = {}  # what Kernel.extract has read of a scope, until that changes
        self._counter = 0

    # ---------------------------------------------------------------- arrays

    def fresh_name(self, hint: str) -> str:
        """A name that no array has."""
        self._counter += 1
        return f"{_clean(hint)[:_MAX_HINT] or 'v'}_{self._counter}"

    def add_array(
        self,
        hint: str,
        shape: Sequence[Any],
        dtype: Any,
        strides: Sequence[Any] | None = None,
        *,
        transient: bool = True,
    ) -> str:
        """Add an array of ``shape`` (ints or symbolic) and DaCe ``dtype``; row-major unless ``strides`` (elements) are
        given."""
        name = self.fresh_name(hint)
        self._declare(name, shape, dtype, strides, transient)
        self.source_names.setdefault(name, hint)
        return name

    def _declare(
        self, name: str, shape: Sequence[Any], dtype: Any, strides: Sequence[Any] | None, transient: bool
    ) -> None:
        extents = tuple(dim(s) for s in shape)
        if self.maker.origins:
            self.origins[name] = self.maker.origins
        if not extents:
            self.scalars.add(name)
        stored = extents or (1,)
        steps = tuple(dim(s) for s in strides) if strides else row_major(stored)
        self._declare_symbols(stored)
        self.sdfg.add_array(name, stored, dtype, transient=transient, strides=steps, total_size=_span(stored, steps))
        self._access[name] = self.state.add_access(name)

    def _declare_symbols(self, exprs: Iterable[Dim]) -> None:
        for expr in exprs:
            for symbol in getattr(expr, "free_symbols", ()):
                if str(symbol) not in self.sdfg.symbols:
                    self.sdfg.add_symbol(str(symbol), dace.int64)

    def add_input(self, hint: str, shape: Sequence[Any], dtype: Any) -> str:
        name = self.add_array(hint, shape, dtype, transient=False)
        self.inputs.append(name)
        return name

    def add_constant(self, hint: str, value: np.ndarray) -> str:
        """An array whose value is known now; it becomes an argument that the loader binds, or a literal in a
        tasklet."""
        value = np.asarray(value)
        name = self.add_array(hint, value.shape, types.from_numpy(value.dtype), transient=False)
        self.constants[name] = np.ascontiguousarray(value).reshape(value.shape)
        return name

    def bind(self, name: str, value: np.ndarray) -> None:
        """Turn an input into a constant of the same shape and dtype."""
        self.inputs.remove(name)
        self.constants[name] = np.ascontiguousarray(value).reshape(value.shape)

    def add_output(self, name: str) -> None:
        """Declare an array that is no view as the next output."""
        if name in self._views:
            raise ValueError(f"output {name} is a view; copy it first")
        self.desc(name).transient = False
        self.outputs.append(name)

    def add_view(self, source: str, hint: str, shape: Sequence[Any], strides: Sequence[Any], offset: Any = 0) -> str:
        """An alias of ``source``: element i stands at ``offset + sum(strides * i)``, counted in elements of the root
        buffer from the source's start."""
        name = self.fresh_name(hint)
        extents = tuple(dim(s) for s in shape)
        if not extents:
            self.scalars.add(name)
        stored, steps = extents or (1,), tuple(dim(s) for s in strides) or (1,)
        self._declare_symbols((*stored, *steps, dim(offset)))
        self.sdfg.add_view(name, stored, self.dtype(source), strides=steps, total_size=_span(stored, steps))
        self._views[name] = (source, dim(offset))
        node = self._access[name] = self.state.add_access(name)
        node.add_in_connector("views")
        self.state.add_edge(self._access[source], None, node, "views", Memlet.from_array(source, self.desc(source)))
        self.source_names.setdefault(name, hint)
        return name

    def seed(self) -> str:
        """The int64 array of one element that random kernels read; added at the first use."""
        if SEED not in self.sdfg.arrays:
            self._declare(SEED, (_SEED_WORDS,), dace.int64, None, False)
        return SEED

    def set_strides(self, name: str, strides: Sequence[Any]) -> None:
        """Change the physical layout of an array; its views select the same elements as before. ValueError, and nothing
        changed, for a view and where a view cannot follow."""
        if name in self._views:
            raise ValueError(f"{name} is a view; its layout is fixed")
        desc, steps = self.desc(name), tuple(dim(s) for s in strides)
        layouts = self._rebased(name, self.strides(name), steps)
        desc.strides, desc.total_size = steps, _span(self.shape(name), steps)
        self._lay_out(layouts)

    @property
    def uses_seed(self) -> bool:
        return SEED in self.sdfg.arrays

    def desc(self, name: str) -> dace.data.Array:
        return self.sdfg.arrays[name]

    def shape(self, name: str) -> Shape:
        return () if name in self.scalars else tuple(dim(s) for s in self.desc(name).shape)

    def dtype(self, name: str) -> dace.typeclass:
        return self.desc(name).dtype

    def strides(self, name: str) -> Shape:
        return () if name in self.scalars else tuple(dim(s) for s in self.desc(name).strides)

    def size(self, name: str) -> Dim:
        """Number of elements."""
        return dim(prod(self.shape(name)))

    def arrays(self) -> list[str]:
        return list(self._access)

    def access(self, name: str) -> nodes.AccessNode:
        return self._access[name]

    def is_view(self, name: str) -> bool:
        return name in self._views

    def view_source(self, name: str) -> str:
        return self._views[name][0]

    def view_offset(self, name: str) -> Dim:
        return self._views[name][1]

    def root(self, name: str) -> tuple[str, Dim]:
        """The buffer that ``name`` aliases, and where it starts there (in elements)."""
        offset: Dim = 0
        while name in self._views:
            name, step = self._views[name]
            offset = dim(offset + step)
        return name, offset

    def views_of(self, name: str) -> list[str]:
        """Direct views of ``name``."""
        return [e.dst.data for e in self.state.out_edges(self._access[name]) if e.dst_conn == "views"]

    def aliases(self, name: str) -> list[str]:
        """``name`` and all its direct and indirect views."""
        found = [name]
        for alias in found:
            found.extend(self.views_of(alias))
        return found

    def is_contiguous(self, name: str) -> bool:
        """Row-major without gaps; the strides of extents of 1 do not matter, nor those of empty arrays."""
        return _in_rows(self.shape(name), self.strides(name))

    # ---------------------------------------------------------------- provenance

    @contextmanager
    def made_for(self, label: str = "", origins: Origins = ()) -> Iterator[None]:
        """Within the block, nodes that a builder adds are called ``label``, whatever they say, and arrays that are
        added come from ``origins``."""
        outer, self.maker = self.maker, self.maker.then(label, origins)
        try:
            yield
        finally:
            self.maker = outer

    def origins_of(self, node: Node) -> Origins:
        """Where in the model the results of ``node`` come from."""
        return joined(self.origins.get(name, ()) for name in self.outputs_of(node) if name is not None)

    def join_origins(self, members: Iterable[Node]) -> None:
        """The results of ``members`` come from where any of them does, for they are about to become one node."""
        members = list(members)
        found = joined(self.origins_of(node) for node in members)
        if found:
            self.origins |= {name: found for node in members for name in self.outputs_of(node) if name is not None}

    # ---------------------------------------------------------------- nodes

    def add_operator(
        self,
        op_type: str,
        inputs: Sequence[str | None],
        outputs: Sequence[str | None],
        attributes: dict[str, Any] | None = None,
        domain: str = "",
    ) -> nodes.LibraryNode:
        """Add an operator node reading ``inputs`` and writing ``outputs`` (array names by position; None = absent)."""
        from daceopt.ops import registry

        node = registry.make(op_type, domain, len(inputs), len(outputs), attributes or {}, self.opset.get(domain))
        reads = {c: n for c, n in zip(node.input_connectors, inputs) if n is not None}
        writes = {c: n for c, n in zip(node.output_connectors, outputs) if n is not None}
        self.add_node(node, reads, writes)
        return node

    def add_node(self, node: nodes.CodeNode, reads: dict[str, str], writes: dict[str, str]) -> None:
        """Add a library node or tasklet over whole arrays; connectors not named are dropped."""
        self.state.add_node(node)
        node.label = self.maker.label or node.label
        node.in_connectors = {c: node.in_connectors.get(c) for c in reads}
        node.out_connectors = {c: node.out_connectors.get(c) for c in writes}
        for conn, name in reads.items():
            self.state.add_edge(self._access[name], None, node, conn, self.whole(name))
        for conn, name in writes.items():
            self._check_unwritten(name)
            self.state.add_edge(node, conn, self._access[name], None, self.whole(name))
        self._compute[node] = None

    def add_scope(self, entry: MapEntry, exit_: nodes.MapExit) -> None:
        """Register a map scope whose nodes and edges stand in the state already."""
        self._compute[entry] = exit_
        self._entries[exit_] = entry

    def whole(self, name: str) -> Memlet:
        return Memlet.from_array(name, self.desc(name))

    def _check_unwritten(self, name: str) -> None:
        if name in self._views or self.state.in_degree(self._access[name]):
            raise ValueError(f"{name} is written twice or is a view; arrays are written once (SSA)")

    def exit_of(self, entry: MapEntry) -> nodes.MapExit:
        exit_ = self._compute[entry]
        assert exit_ is not None
        return exit_

    def producer(self, name: str) -> Node | None:
        """The node that writes ``name`` (a view's root); None for inputs and constants."""
        edges = self.state.in_edges(self._access[self.root(name)[0]])
        if not edges:
            return None
        return self._owner(edges[0].src)

    def consumers(self, name: str) -> list[Node]:
        """Compute nodes that read ``name`` itself, each once."""
        edges = self.state.out_edges(self._access[name])
        return list(dict.fromkeys(e.dst for e in edges if e.dst_conn != "views"))

    def all_consumers(self, name: str) -> list[Node]:
        """Compute nodes that read ``name`` or any view of it."""
        return list(dict.fromkeys(c for alias in self.aliases(name) for c in self.consumers(alias)))

    def _owner(self, node: Node) -> Node:
        return self._entries[node] if isinstance(node, nodes.MapExit) else node

    def inputs_of(self, node: Node) -> Operands:
        """Arrays read: by position for operators (None = absent), sorted and unique for everything else."""
        by_connector = {e.dst_conn: e.src.data for e in self.state.in_edges(node) if e.dst_conn}
        return _in_order(node, "input", by_connector)

    def outputs_of(self, node: Node) -> Operands:
        """Arrays written, in the same form as :meth:`inputs_of`."""
        last = self._compute[node] or node
        by_connector = {e.src_conn: e.dst.data for e in self.state.out_edges(last) if e.src_conn}
        return _in_order(node, "output", by_connector)

    def reads(self, node: nodes.CodeNode) -> dict[str, str]:
        """Connector -> array for a library node or tasklet."""
        return {e.dst_conn: e.src.data for e in self.state.in_edges(node) if e.dst_conn}

    def writes(self, node: nodes.CodeNode) -> dict[str, str]:
        return {e.src_conn: e.dst.data for e in self.state.out_edges(node) if e.src_conn}

    def nodes(self) -> list[Node]:
        """Top-level compute nodes in a topological order that is stable under insertion order."""
        waiting: dict[Node, int] = {}
        users: dict[Node, list[Node]] = {}
        for node in self._compute:
            sources = {self.producer(n) for n in self.inputs_of(node) if n is not None} - {None}
            waiting[node] = len(sources)
            for source in sources:
                users.setdefault(source, []).append(node)
        order = [n for n, count in waiting.items() if count == 0]
        for node in order:
            for user in users.get(node, ()):
                waiting[user] -= 1
                if waiting[user] == 0:
                    order.append(user)
        if len(order) != len(self._compute):
            raise ValueError("the graph has a cycle")
        return order

    def operators(self) -> list[Any]:
        """Operator nodes (ONNX operators not lowered yet) in topological order."""
        return [n for n in self.nodes() if hasattr(n, "op_type")]

    def kernels(self) -> list[MapEntry]:
        """Top-level map scopes in topological order."""
        return [n for n in self.nodes() if isinstance(n, MapEntry)]

    def is_kept(self, name: str) -> bool:
        """Does ``name`` or a view of it outlive the program: as an output, or saved for the backward pass?"""
        return any(alias in self.outputs or alias in self.saved for alias in self.aliases(name))

    def __contains__(self, node: object) -> bool:
        return node in self._compute

    # ---------------------------------------------------------------- edits

    def replace_uses(self, old: str, new: str) -> None:
        """Every compute node and view that reads ``old`` reads ``new`` instead (same shape); graph outputs too.

        Views of ``old`` are laid out again over ``new``. ValueError, and nothing changed, if that is impossible or if
        ``new`` cannot be an output that ``old`` is (a view, an input, a constant, an output already), or what a reader
        takes that wants contiguous arrays: the caller must copy ``new`` into ``old`` instead.
        """
        held = old in self.outputs or old in self.saved
        if held and (new in self._views or not self.desc(new).transient or new in self.saved):
            raise ValueError(f"{old} is an output and {new} cannot take its place; copy into {old} instead")
        layouts = self._rebased(old, self.strides(old), self.strides(new))
        self._check_rows({old: self.strides(new), **{view: strides for view, (strides, _) in layouts.items()}})
        for edge in list(self.state.out_edges(self._access[old])):
            self._reconnect(edge, old, new)
        self._lay_out(layouts)
        self.saved = [new if n == old else n for n in self.saved]
        if old in self.outputs:
            self.outputs = [new if n == old else n for n in self.outputs]
            self.desc(new).transient, self.desc(old).transient = False, True

    def _check_rows(self, strides: dict[str, Shape]) -> None:
        """Raise ValueError where a node that wants its operands row-major would read one that is no longer."""
        for name, steps in strides.items():
            if _in_rows(self.shape(name), steps):
                continue
            if any(getattr(node, "wants_rows", False) for node in self.consumers(name)):
                raise ValueError(f"{name} is read by a node that takes contiguous arrays only")

    def _lay_out(self, layouts: dict[str, tuple[Shape, Dim]]) -> None:
        for view, (strides, offset) in layouts.items():
            desc = self.desc(view)
            desc.strides, desc.total_size = strides or (1,), _span(self.shape(view), strides)
            self._views[view] = (self._views[view][0], offset)

    def _rebased(self, source: str, before: Shape, after: Shape) -> dict[str, tuple[Shape, Dim]]:
        """New strides and offsets of all views over ``source`` when its strides change. Raises ValueError."""
        found: dict[str, tuple[Shape, Dim]] = {}
        if before == after:
            return found
        for view in self.views_of(source):
            own = self.strides(view)
            layout = rebase(self.shape(view), own, self._views[view][1], self.shape(source), before, after)
            if layout is None:
                raise ValueError(f"view {view} of {source} cannot follow it from strides {before} to {after}")
            found[view] = layout
            found |= self._rebased(view, own, layout[0])
        return found

    def _reconnect(self, edge: Any, old: str, new: str) -> None:
        self.state.remove_edge(edge)
        memlet = self.whole(new)
        self.state.add_edge(self._access[new], None, edge.dst, edge.dst_conn, memlet)
        if edge.dst_conn == "views":
            view = edge.dst.data
            self._views[view] = (new, self._views[view][1])
        elif isinstance(edge.dst, MapEntry):
            self._rename_in_scope(edge.dst, old, new)

    def _rename_in_scope(self, entry: MapEntry, old: str, new: str) -> None:
        self.extracted.pop(entry, None)
        for node in self.scope(entry):
            for edge in self.state.out_edges(node):
                if edge.data.data == old:
                    edge.data.data = new

    def scope(self, entry: MapEntry) -> list[Node]:
        """All nodes of a map scope, with its entry and exit."""
        exit_ = self.exit_of(entry)
        seen: dict[Node, None] = {entry: None}
        frontier = [entry]
        for node in frontier:
            if node is exit_:
                continue
            for successor in self.state.successors(node):
                if successor not in seen:
                    seen[successor] = None
                    frontier.append(successor)
            for predecessor in self.state.predecessors(node) if node is not entry else ():
                if predecessor not in seen:
                    seen[predecessor] = None
                    frontier.append(predecessor)
        return list(seen)

    def remove(self, node: Node) -> None:
        """Remove a compute node and its scope; arrays stay (see :meth:`prune`)."""
        members = self.scope(node) if isinstance(node, MapEntry) else [node]
        inside = dict.fromkeys(m.data for m in members if isinstance(m, nodes.AccessNode))
        self.state.remove_nodes_from(members)
        for name in inside:
            self.sdfg.remove_data(name, validate=False)
        exit_ = self._compute.pop(node)
        self.schedules.pop(node, None)
        self.extracted.pop(node, None)
        self._entries.pop(exit_, None)

    def prune(self) -> int:
        """Remove nodes whose results nobody reads, and arrays without users; returns how many."""
        before = len(self._compute) + len(self._access)
        for node in reversed(self.nodes()):
            if getattr(node, "has_side_effects_", False):
                continue
            if not any(self._is_used(n) for n in self.outputs_of(node) if n is not None):
                self.remove(node)
            elif hasattr(node, "output_connectors"):
                self._drop_unused_outputs(node)
        for name in reversed(self._access):
            self._drop_array(name)
        self._access = {n: a for n, a in self._access.items() if n in self.sdfg.arrays}
        return before - len(self._compute) - len(self._access)

    def _is_used(self, name: str) -> bool:
        return self.is_kept(name) or any(self.consumers(alias) for alias in self.aliases(name))

    def _drop_unused_outputs(self, node: Any) -> None:
        for edge in list(self.state.out_edges(node)):
            if not self._is_used(edge.dst.data):
                self.state.remove_edge(edge)
                node.remove_out_connector(edge.src_conn)

    def _drop_array(self, name: str) -> None:
        node = self._access[name]
        if name in self.inputs or self.is_kept(name) or self.state.out_degree(node):
            return
        if self.state.in_degree(node) and name not in self._views:
            return
        self.state.remove_node(node)
        self.sdfg.remove_data(name, validate=False)
        self._views.pop(name, None)
        self.constants.pop(name, None)
        self.scalars.discard(name)

    # ---------------------------------------------------------------- whole graph

    def copy(self) -> Graph:
        """An independent copy; array names are the same."""
        memo: dict[int, Any] = {}
        new = Graph.__new__(Graph)
        for name, value in vars(self).items():
            setattr(new, name, copy.copy(value) if isinstance(value, (list, dict, set)) else value)
        new.sdfg = copy.deepcopy(self.sdfg, memo)
        new.state, new.maker = memo[id(self.state)], Maker()
        new._access = {n: memo[id(a)] for n, a in self._access.items()}
        new._compute = {memo[id(n)]: memo[id(x)] if x is not None else None for n, x in self._compute.items()}
        new.schedules = {memo[id(n)]: tree for n, tree in self.schedules.items()}
        new.extracted = {memo[id(n)]: kernel for n, kernel in self.extracted.items()}
        new._entries = {x: n for n, x in new._compute.items() if x is not None}
        return new

    def validate(self) -> None:
        """Raise ``ValueError`` or DaCe's ``InvalidSDFGError`` when an invariant does not hold."""
        for name, node in self._access.items():
            writers = self.state.in_degree(node)
            given = name in self.inputs or name in self.constants or name == SEED
            if writers > 1 or (writers == 1 and given):
                raise ValueError(f"array {name} is written more than once")
        for name in self.outputs:
            if name not in self._access:
                raise ValueError(f"output {name} does not exist")
        self.nodes()
        with self._without_isolated():
            self._validate_sdfg()

    @contextmanager
    def _without_isolated(self) -> Iterator[None]:
        """DaCe refuses access nodes without edges, which unused inputs have."""
        isolated = [a for a in self._access.values() if not self.state.degree(a)]
        self.state.remove_nodes_from(isolated)
        try:
            yield
        finally:
            self.state.add_nodes_from(isolated)

    def _validate_sdfg(self) -> None:
        self.sdfg.save = lambda *_, **__: None  # DaCe would leave a file in the current folder
        try:
            self.sdfg.validate()
        finally:
            del self.sdfg.save

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes())


def _clean(hint: str) -> str:
    """Only what C++, DaCe and file systems all take: lower-case ASCII letters, digits and single underscores."""
    text = re.sub(r"[^a-z0-9]+", "_", hint.lower().encode("ascii", "ignore").decode()).strip("_")
    return text if not text or text[0].isalpha() else f"v{text}"


def _span(shape: Shape, strides: Shape) -> Dim:
    """Elements from the first to the last that (shape, strides) touches, at least 1."""
    if all(isinstance(s, int) for s in shape) and prod(shape) == 0:
        return 1
    return dim(1 + sum((s - 1) * t for s, t in zip(shape, strides)))
