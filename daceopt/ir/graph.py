"""The graph that every room works on: one SDFG with one state in SSA form, and quick answers to who writes and reads
what."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import dace
from dace import nodes

from daceopt.ir import parts, placements, plain_properties, pruning, sub_graphs, validation, view_boxes
from daceopt.ir.arrays import SEED, Arrays
from daceopt.ir.build_options import BuildOptions
from daceopt.ir.dims import Dim, Shape, dim, in_rows, row_major, span
from daceopt.ir.nodes.kernel_node import KernelNode
from daceopt.ir.nodes.kinds import Node, is_operator
from daceopt.ir.nodes.operator import Operator, make
from daceopt.ir.operands import Operands, all_required, required
from daceopt.ir.order import Order
from daceopt.ir.placements import Placement
from daceopt.ir.provenance import Maker, Origins, joined
from daceopt.ir.scopes import Scopes
from daceopt.ir.sub_graphs import SubGraph
from daceopt.ir.views import follow

__all__ = ["SEED", "Dim", "Graph", "Shape", "dim", "row_major"]

plain_properties.install()


def _in_order(node: Node, kind: str, by_connector: dict[str, str]) -> Operands:
    """Operators number their operands; other nodes have them sorted and unique."""
    owner = f"{kind}s of {getattr(node, 'op_type', '') or type(node).__name__} {getattr(node, 'label', '')!r}"
    positions = getattr(node, f"{kind}_connectors", None)
    if positions is not None:
        return Operands([by_connector.get(c) for c in positions], owner)
    return Operands(sorted(set(by_connector.values())), owner)


class Graph(Arrays):
    """One SDFG with one state; see docs/architecture.md for the invariants.

    ``inputs`` and ``outputs`` are array names in call order; ``constants`` maps arrays to values known at compile time;
    ``symbols`` maps a size symbol to the ``(input name, axis)`` that defines it. All changes go through the methods
    below, which keep the def-use tables.
    """

    def __init__(self, name: str = "program", target: str = "cpu"):
        super().__init__(name)
        self.options = BuildOptions(target=target)
        self._compute: dict[Node, None] = {}  # compute nodes, as they were added
        self.locals: dict[str, KernelNode] = {}  # arrays inside of kernels, whose names no others have
        self._order = Order()
        self._sub_graphs: tuple[SubGraph, ...] = ()
        self._placements: dict[str, Placement] = {}

    # ---------------------------------------------------------------- provenance

    def origins_of(self, node: Node) -> Origins:
        """Where in the model the results of ``node`` come from."""
        return joined(self.origins.get(name, ()) for name in self.outputs_of(node) if name is not None)

    def take_out(self, members: Iterable[Node]) -> None:
        """Remove ``members``, which are about to become one node: their results come from where any of them does."""
        members = list(members)
        found = joined(self.origins_of(node) for node in members)
        if found:
            self.origins |= {name: found for node in members for name in self.outputs_of(node) if name is not None}
        for node in members:
            self.remove(node)

    # ---------------------------------------------------------------- nodes

    def add_operator(
        self,
        op_type: str,
        inputs: Sequence[str | None],
        outputs: Sequence[str | None],
        attributes: dict[str, Any] | None = None,
        domain: str = "",
        version: int | None = None,
    ) -> nodes.LibraryNode:
        """Add an operator node reading ``inputs`` and writing ``outputs`` (array names by position; None = absent).

        ``version``: of the operator's schema; that of the graph's opset unless given.
        """
        version = self.source.opset.get(domain) if version is None else version
        node = make(op_type, domain, len(inputs), len(outputs), attributes or {}, version)
        reads = {c: n for c, n in zip(node.input_connectors, inputs) if n is not None}
        writes = {c: n for c, n in zip(node.output_connectors, outputs) if n is not None}
        self.add_node(node, reads, writes)
        return node

    def add_result(self, node: Operator, position: int, name: str) -> None:
        """Let an operator write ``name`` at ``position``, where it had no output."""
        taken = len(node.output_connectors)
        node.output_connectors += [f"Extra_{k}" for k in range(taken, position + 1)]
        connector = node.output_connectors[position]
        self._check_unwritten(name)
        node.add_out_connector(connector)
        self.state.add_edge(node, connector, self._access[name], None, self.whole(name))
        self._order.edited()

    def drop_result(self, node: Operator, position: int) -> None:
        """Let an operator no longer write its output at ``position``; the array and its readers stay."""
        connector = node.output_connectors[position]
        (edge,) = (e for e in self.state.out_edges(node) if e.src_conn == connector)
        self.state.remove_edge(edge)
        node.remove_out_connector(connector)
        self._order.edited()

    def add_node(self, node: nodes.CodeNode, reads: dict[str, str], writes: dict[str, str]) -> None:
        """Add a library node or tasklet over whole arrays; connectors not named are dropped. ValueError for an array
        that is written already, and for a kernel with a local that is called like an array or another local."""
        for name in (own := node.kernel.locals if isinstance(node, KernelNode) else ()):
            self._check_free(name)
        self.locals |= dict.fromkeys(own, node)
        self.state.add_node(node)
        node.label = self.maker.label or node.label
        node.in_connectors = {c: node.in_connectors.get(c) for c in reads}
        node.out_connectors = {c: node.out_connectors.get(c) for c in writes}
        for conn, name in reads.items():
            self.read(node, conn, name)
        for conn, name in writes.items():
            self.write(node, conn, name)
        self._compute[node] = None
        self._order.edited()

    def read(self, node: nodes.CodeNode, connector: str, name: str) -> None:
        """Let ``connector`` of a library node or region read the array ``name``."""
        self.state.add_edge(self._access[name], None, node, connector, self.whole(name))
        self._order.edited()

    def write(self, node: nodes.CodeNode, connector: str, name: str) -> None:
        """Let ``connector`` of a library node or region write the array ``name``, which nothing writes yet."""
        self._check_unwritten(name)
        self.state.add_edge(node, connector, self._access[name], None, self.whole(name))
        self._order.edited()

    def _check_free(self, name: str) -> None:
        """Raise ValueError where an array, or a local of a kernel, is called ``name``."""
        super()._check_free(name)
        if name in self.locals:
            raise ValueError(f"there is a local {name} of kernel {self.locals[name].label} already")

    def desc(self, name: str) -> dace.data.Array:
        """What is known of an array, or of a local of a kernel."""
        if name in self.locals:
            dtype, shape = self.locals[name].kernel.locals[name]
            return dace.data.Array(dtype, shape, transient=True)
        return super().desc(name)

    def _check_unwritten(self, name: str) -> None:
        if name in self._views or self.state.in_degree(self._access[name]):
            raise ValueError(f"{name} is written twice or is a view; arrays are written once (SSA)")

    def producer(self, name: str) -> Node | None:
        """The node that writes ``name``, or what it is a view of; None for inputs and constants, and for an array that
        nodes write in parts (see :meth:`producers`)."""
        edges = self.state.in_edges(self._access[self.written(name)])
        if not edges or parts.joins(edges[0]):
            return None
        return edges[0].src

    def sources(self, name: str) -> list[str]:
        """The arrays, each written by one node or given, whose elements ``name`` shows: one, or parts of one."""
        whole = self.written(name)
        if not self._parts or not self.parts_of(whole):
            return [whole]
        if self.is_view(name):
            return view_boxes.sources(self, name)
        return [m for m in parts.within(self, whole) if not self.parts_of(m)]

    def producers(self, name: str) -> list[Node]:
        """The nodes that write ``name``, what it is a view of, or a part of that; none for inputs and constants."""
        return [node for node in map(self.producer, self.sources(name)) if node is not None]

    def consumers(self, name: str) -> list[Node]:
        """Compute nodes that read ``name`` itself, each once."""
        edges = self.state.out_edges(self._access[name])
        return list(dict.fromkeys(e.dst for e in edges if not isinstance(e.dst, nodes.AccessNode)))

    def all_consumers(self, name: str) -> list[Node]:
        """Compute nodes that read ``name``, any view of it, or what it is a part of."""
        return list(dict.fromkeys(c for alias in self.aliases(name) for c in self.consumers(alias)))

    def inputs_of(self, node: Node) -> Operands:
        """Arrays read: by position for operators (None = absent), sorted and unique for everything else."""
        by_connector = {e.dst_conn: e.src.data for e in self.state.in_edges(node) if e.dst_conn}
        return _in_order(node, "input", by_connector)

    def outputs_of(self, node: Node) -> Operands:
        """Arrays written, in the same form as :meth:`inputs_of`."""
        by_connector = {e.src_conn: e.dst.data for e in self.state.out_edges(node) if e.src_conn}
        return _in_order(node, "output", by_connector)

    def operand(self, node: Node, position: int) -> str:
        """The array that ``node`` reads at ``position``. Raises Unsupported, with the node, where it is absent."""
        return required(self.inputs_of(node), position)

    def operands(self, node: Node, count: int | None = None) -> list[str]:
        """The first ``count`` arrays that ``node`` reads, or all of them; raises as :meth:`operand` does."""
        return all_required(self.inputs_of(node), count)

    def result(self, node: Node, position: int) -> str:
        """The array that ``node`` writes at ``position``; raises as :meth:`operand` does."""
        return required(self.outputs_of(node), position)

    def reads(self, node: nodes.CodeNode) -> dict[str, str]:
        """Connector -> array for a library node or tasklet."""
        return {e.dst_conn: e.src.data for e in self.state.in_edges(node) if e.dst_conn}

    def writes(self, node: nodes.CodeNode) -> dict[str, str]:
        return {e.src_conn: e.dst.data for e in self.state.out_edges(node) if e.src_conn}

    def nodes(self) -> list[Node]:
        """Top-level compute nodes in the order in which they run."""
        return self._order.of(self)

    def compute(self) -> list[Node]:
        """The same nodes in the order in which they were added."""
        return list(self._compute)

    @property
    def is_ordered(self) -> bool:
        """Was an order of execution asked for?"""
        return bool(self._order.position)

    @property
    def order(self) -> tuple[Node, ...]:
        """The order of execution: by default topological, and stable under insertion order. What is assigned is checked
        (IllegalOrder) and kept by later edits, as near as they let it; None returns to the default."""
        return tuple(self.nodes())

    @order.setter
    def order(self, nodes: Sequence[Node] | None) -> None:
        self._order = Order()
        if nodes is not None:
            self._order.set(self, nodes)

    @property
    def sub_graphs(self) -> tuple[SubGraph, ...]:
        """Nodes that are split together, as steps decide it (:mod:`daceopt.ir.sub_graphs`). What is assigned is checked
        (ValueError); arrays that later edits remove leave it."""
        return tuple(group.within(self) for group in self._sub_graphs)

    @sub_graphs.setter
    def sub_graphs(self, groups: Sequence[SubGraph]) -> None:
        sub_graphs.check(self, groups)
        self._sub_graphs = tuple(groups)

    @property
    def placements(self) -> dict[str, Placement]:
        """Where arrays live on a machine with scratchpads (:mod:`daceopt.ir.placements`), as a step decided it; none of
        arrays that later edits made. What is assigned is checked (ValueError)."""
        return {name: placement for name, placement in self._placements.items() if self.has(name)}

    @placements.setter
    def placements(self, found: Mapping[str, Placement]) -> None:
        placements.check(self, found)
        self._placements = dict(found)

    def operators(self) -> list[Operator]:
        """Operator nodes (ONNX operators not lowered yet) in topological order."""
        return [n for n in self.nodes() if is_operator(n)]

    def kernels(self) -> list[KernelNode]:
        """Kernels in topological order."""
        return [n for n in self.nodes() if isinstance(n, KernelNode)]

    def is_kept(self, name: str) -> bool:
        """Does ``name``, a view of it, or what it is a part of outlive the program: as an output, or saved for the
        backward pass?"""
        return any(alias in self.outputs or alias in self.saved for alias in self.aliases(name))

    def __contains__(self, node: object) -> bool:
        return node in self._compute

    # ---------------------------------------------------------------- edits

    def replace_uses(self, old: str, new: str, keep: Sequence[Node] = ()) -> None:
        """Every compute node and view that reads ``old`` reads ``new`` instead (same shape); graph outputs too.

        But ``keep``, the nodes that go on reading ``old``.

        Views of ``old`` are laid out again over ``new``. ValueError, and nothing changed, if that is impossible or if
        ``new`` cannot be an output that ``old`` is (a view, an input, a constant, an output already), or what a reader
        takes that wants contiguous arrays: the caller must copy ``new`` into ``old`` instead.
        """
        held = old in self.outputs or old in self.saved
        if old in self._parts:
            raise ValueError(f"{old} is a part of {self._parts[old].whole}; copy {new} into it instead")
        if held and (new in self._views or new in self._parts or not self.desc(new).transient or new in self.saved):
            raise ValueError(f"{old} is an output and {new} cannot take its place; copy into {old} instead")
        layouts = follow(self, old, self.strides(old), self.strides(new))
        self._check_rows({old: self.strides(new), **{view: strides for view, (strides, _) in layouts.items()}})
        for edge in [e for e in self.state.out_edges(self._access[old]) if e.dst not in keep]:
            self._reconnect(edge, old, new)
        self._lay_out(layouts)
        self.saved = [new if n == old else n for n in self.saved]
        if old in self.outputs:
            self.outputs = [new if n == old else n for n in self.outputs]
            self.desc(new).transient, self.desc(old).transient = False, True

    def _check_rows(self, strides: dict[str, Shape], written: Iterable[str] = ()) -> None:
        """Raise ValueError where a node that wants its arrays row-major would read one, or write one of ``written``,
        that is no longer."""
        for name, steps in strides.items():
            users = [*self.consumers(name), *([self.producer(name)] if name in written else [])]
            if not in_rows(self.shape(name), steps) and any(getattr(n, "wants_rows", False) for n in users):
                raise ValueError(f"{name} is read by a node that takes contiguous arrays only, or written by one")

    def add_part(self, whole: str, hint: str, starts: Sequence[Any], shape: Sequence[Any]) -> str:
        """An array of ``shape`` that is the box of ``whole`` which begins at ``starts``: one node writes it, others
        write the rest of ``whole``."""
        name = self.add_array(hint, shape, self.dtype(whole))
        parts.attach(self, name, whole, [dim(s) for s in starts])
        return name

    def set_strides(self, name: str, strides: Sequence[Any]) -> None:
        """Change the physical layout of an array; its views and parts select the same elements as before. ValueError,
        and nothing changed, for a view or part and where a view cannot follow."""
        if name in self._views or name in self._parts:
            raise ValueError(f"{name} is a view or part; its layout is fixed")
        steps, members = tuple(dim(s) for s in strides), parts.within(self, name)
        layouts = {k: v for m in members for k, v in follow(self, m, self.strides(m), steps).items()}
        self._check_rows(dict.fromkeys(members[1:], steps), written=members[1:])
        self._lay_out(dict.fromkeys(members, (steps, 0)) | layouts)

    def _lay_out(self, layouts: dict[str, tuple[Shape, Dim]]) -> None:
        for view, (strides, offset) in layouts.items():
            desc = self.desc(view)
            desc.strides, desc.total_size = strides or (1,), span(self.shape(view), strides)
            if view in self._views:
                self._views[view] = (self._views[view][0], offset)

    def _reconnect(self, edge: Any, old: str, new: str) -> None:
        self.state.remove_edge(edge)
        self._order.edited()
        memlet = self.whole(new)
        self.state.add_edge(self._access[new], None, edge.dst, edge.dst_conn, memlet)
        if edge.dst_conn == "views":
            view = edge.dst.data
            self._views[view] = (new, self._views[view][1])
        elif isinstance(edge.dst, KernelNode):
            edge.dst.kernel = edge.dst.kernel.over({old: new})

    @property
    def scope(self) -> Scopes:
        """Where each array lives; see :class:`daceopt.ir.scopes.Scopes`."""
        return Scopes(self)

    def remove(self, node: Node) -> None:
        """Remove a compute node; arrays stay (see :meth:`prune`)."""
        self.state.remove_node(node)
        for name in node.kernel.locals if isinstance(node, KernelNode) else ():
            del self.locals[name]
        del self._compute[node]
        self._order.relaxed()

    def prune(self) -> int:
        """Remove nodes whose results nobody reads, and arrays without users; returns how many."""
        return pruning.prune(self)

    def drop(self, name: str) -> None:
        """Remove an array that no node reads or writes."""
        self.state.remove_node(self._access.pop(name))
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
        new.state, new.maker, new.source = memo[id(self.state)], Maker(), self.source.copy()
        new._order = self._order.copy()
        new._access = {n: memo[id(a)] for n, a in self._access.items()}
        new._compute = {memo[id(n)]: None for n in self._compute}
        new.locals = {name: memo[id(n)] for name, n in self.locals.items()}
        return new

    def validate(self) -> None:
        """Raise ``ValueError`` or DaCe's ``InvalidSDFGError`` when an invariant does not hold."""
        validation.validate(self)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes())
