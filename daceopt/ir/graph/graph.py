"""The graph that every room works on: arrays in SSA form, the nodes that compute them, who writes and reads what."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dace import nodes

from daceopt.ir.data.arrays import Part
from daceopt.ir.data.parts import why_no_part, within
from daceopt.ir.data.provenance import Maker, join_origins, label_of
from daceopt.ir.data.views import follow
from daceopt.ir.graph import placements, plain_properties, sub_graphs, validation
from daceopt.ir.graph.build_options import BuildOptions
from daceopt.ir.graph.dataflow_graph import DataflowGraph
from daceopt.ir.graph.kinds import Node, is_operator
from daceopt.ir.graph.operator import Operator, make
from daceopt.ir.graph.order import Order
from daceopt.ir.graph.placements import Placement
from daceopt.ir.graph.scopes import Scopes
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import Dim, Shape, dim, in_rows

plain_properties.install()


class Graph(DataflowGraph):
    """Nodes over arrays; docs/architecture.md has the invariants. ``ir/graph/sdfg.py`` has it as an SDFG of DaCe.

    ``inputs`` and ``outputs`` are array names in call order; ``constants`` maps arrays to values known at compile time;
    ``symbols`` maps a size symbol to the ``(input name, axis)`` that defines it. All changes go through the methods
    below, which keep the def-use tables.
    """

    def __init__(self, name: str = "program", target: str = "cpu"):
        super().__init__(name)
        self.options = BuildOptions(target=target)
        self._order = Order()
        self._sub_graphs: tuple[SubGraph, ...] = ()
        self._placements: dict[str, Placement] = {}

    def take_out(self, members: Iterable[Node]) -> None:
        """Remove ``members``, which are about to become one node: their results come from where any of them does."""
        members = list(members)
        origins = join_origins(self.origins_of(node) for node in members)
        if origins:
            self.origins |= {name: origins for node in members for name in self.outputs_of(node) if name is not None}
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

    def add_node(self, node: nodes.CodeNode, reads: dict[str, str], writes: dict[str, str]) -> None:
        """Add a library node or tasklet over whole arrays; connectors not named are dropped. ValueError for an array
        that is written already, and for a kernel with a local that is called like an array or another local."""
        for name in (own := node.kernel.locals if isinstance(node, KernelNode) else ()):
            self._check_free(name)
        for name in writes.values():
            self._check_unwritten(name)
        self.locals |= dict.fromkeys(own, node)
        self.def_use.add(node)
        node.label = self.maker.label or node.label
        node.in_connectors = {c: node.in_connectors.get(c) for c in reads}
        node.out_connectors = {c: node.out_connectors.get(c) for c in writes}
        for conn, name in reads.items():
            self.read(node, conn, name)
        for conn, name in writes.items():
            self.write(node, conn, name)
        self._order.on_addition()

    def add_kernel(self, kernel: Kernel, as_it_is: bool = False) -> KernelNode:
        """Add a kernel over arrays that the graph has; returns its node.

        Loops of one iteration vanish, unless it is added ``as_it_is``. ValueError for an array that is written
        already, for a local whose name is taken, and for assignments out of order.
        """
        kernel = (kernel if as_it_is else kernel.without_unit_loops()).normal_form(self)
        node = KernelNode(kernel)
        reads = dict.fromkeys(a.array for a in kernel.reads())
        writes = dict.fromkeys(a.array for a in kernel.writes())
        self.add_node(node, {f"In{k}": n for k, n in enumerate(reads)}, {f"Out{k}": n for k, n in enumerate(writes)})
        node.label = kernel.label
        return node

    def read(self, node: Node, connector: str, name: str) -> None:
        """Let ``connector`` of a library node or region, a new one if it has none of that name, read ``name``.
        ValueError where there is no such array."""
        if not self.has(name):
            raise ValueError(f"there is no array {name} for {label_of(node)} to read")
        if connector not in node.in_connectors:
            node.add_in_connector(connector)
        self.def_use.read(node, connector, name)
        self._order.on_addition()

    def write(self, node: Node, connector: str, name: str) -> None:
        """Let ``connector`` of a library node or region, a new one if it has none of that name, write ``name``, which
        nothing writes yet. ValueError where something does, or where there is no such array."""
        self._check_unwritten(name)
        if connector not in node.out_connectors:
            node.add_out_connector(connector)
        self.def_use.write(node, connector, name)
        self._order.on_addition()

    def drop_read(self, node: Node, connector: str) -> None:
        """Let ``node`` no longer read at ``connector``, which goes."""
        self.def_use.drop_read(node, connector)
        node.remove_in_connector(connector)
        self._order.on_removal()

    def drop_write(self, node: Node, connector: str) -> None:
        """Let ``node`` no longer write at ``connector``, which goes; the array and its readers stay."""
        self.def_use.drop_write(node, connector)
        node.remove_out_connector(connector)
        self._order.on_removal()

    def nodes(self) -> list[Node]:
        """Top-level compute nodes in the order in which they run."""
        return self._order.of(self)

    @property
    def is_ordered(self) -> bool:
        """Was an order of execution requested?"""
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
        """Nodes that are split together, as steps decide it (``sub_graphs.py``). What is assigned is checked
        (ValueError); arrays that later edits remove leave it."""
        return tuple(group.within(self) for group in self._sub_graphs)

    @sub_graphs.setter
    def sub_graphs(self, groups: Sequence[SubGraph]) -> None:
        sub_graphs.check(self, groups)
        self._sub_graphs = tuple(groups)

    def put_sub_graph(self, group: SubGraph, position: int | None = None) -> None:
        """Add a sub-graph, of arrays that are in no other (which is not checked again), or put it in the place of the
        one at ``position``. Raises ValueError."""
        sub_graphs.check(self, [group])
        groups = list(self._sub_graphs)
        at = len(groups) if position is None else position
        groups[at : at + 1] = [group]
        self._sub_graphs = tuple(groups)

    def instance_positions(self) -> dict[Node, tuple[int, int]]:
        """Node -> the positions of its sub-graph and of its instance there, for all nodes that are in one."""
        return {
            node: (k, i)
            for k, group in enumerate(self.sub_graphs)
            for i, members in enumerate(group.instance_nodes(self))
            for node in members
        }

    @property
    def placements(self) -> dict[str, Placement]:
        """Where arrays live on a machine with scratchpads (``placements.py``), as a step decided it; none of
        arrays that later edits made. What is assigned is checked (ValueError)."""
        return {name: placement for name, placement in self._placements.items() if self.has(name)}

    @placements.setter
    def placements(self, placements_of_arrays: Mapping[str, Placement]) -> None:
        placements.check(self, placements_of_arrays)
        self._placements = dict(placements_of_arrays)

    def operators(self) -> list[Operator]:
        """Operator nodes (ONNX operators not lowered yet) in topological order."""
        return [n for n in self.nodes() if is_operator(n)]

    def kernels(self) -> list[KernelNode]:
        """Kernels in topological order."""
        return [n for n in self.nodes() if isinstance(n, KernelNode)]

    # ---------------------------------------------------------------- edits

    def replace_uses(self, old: str, new: str, keep: Sequence[Node | str] = ()) -> None:
        """Every compute node and view that reads ``old`` reads ``new`` instead (same shape); graph outputs too.

        But ``keep``, the nodes and views that go on reading ``old``.

        Views of ``old`` are laid out again over ``new``. ValueError, and nothing changed, if that is impossible or if
        ``new`` cannot be an output that ``old`` is (a view, an input, a constant, an output already), or what a reader
        takes that wants contiguous arrays: the caller must copy ``new`` into ``old`` instead.
        """
        if old in self._parts:
            raise ValueError(f"{old} is a part of {self._parts[old].whole}; copy {new} into it instead")
        held = old in self.outputs or old in self.saved
        if held and (new in self._views or new in self._parts or not self.is_transient(new) or new in self.saved):
            raise ValueError(f"{old} is an output and {new} cannot take its place; copy into {old} instead")
        layouts = follow(self, old, self.strides(old), self.strides(new))
        self._check_rows({old: self.strides(new), **{view: strides for view, (strides, _) in layouts.items()}})
        for node, connector in [r for r in self.def_use.readers(old) if r[0] not in keep]:
            self._read_instead(node, connector, new)
        for view in [v for v in self.views_of(old) if v not in keep]:
            del self._views_of[old][view]
            self._place_view(view, new, self.view_offset(view))
        self._order.on_addition()
        self._lay_out(layouts)
        self.saved = [new if n == old else n for n in self.saved]
        self.outputs = [new if n == old else n for n in self.outputs]

    def _check_rows(self, strides: dict[str, Shape], written: Iterable[str] = ()) -> None:
        """Raise ValueError where a node that wants its arrays row-major would read one, or write one of ``written``,
        that is no longer."""
        for name, steps in strides.items():
            users = [*self.consumers(name), *([self.producer(name)] if name in written else [])]
            if not in_rows(self.shape(name), steps) and any(getattr(n, "wants_rows", False) for n in users):
                raise ValueError(f"{name} is read by a node that takes contiguous arrays only, or written by one")

    def attach(self, name: str, whole: str, starts: Sequence[Dim]) -> None:
        """Let the array ``name``, of the rank of ``whole``, be the box of it that begins at ``starts``.

        It is there from now on, with the strides of ``whole``; its views and what writes and reads it stay. Raises
        ValueError, and changes nothing, where a view cannot follow, and for arrays that have a place already: views,
        inputs, constants, outputs, saved arrays, parts of another array.
        """
        self._check_fits(name, whole)
        steps = self.strides(whole)
        layouts = follow(self, name, self.strides(name), steps)
        self._check_rows({name: steps, **{view: strides for view, (strides, _) in layouts.items()}}, written=[name])
        self.set_strides(name, steps)
        self._parts[name] = Part(whole, tuple(starts))
        self._parts_of.setdefault(whole, {})[name] = None
        self._order.on_addition()

    def _check_fits(self, name: str, whole: str) -> None:
        """Raise ValueError unless ``name`` can be a part of ``whole``."""
        if reason := why_no_part(self, name):
            raise ValueError(f"{name} cannot be a part of {whole}: it is {reason}")
        if self.is_view(whole) or (self.producers(whole) and not self.parts_of(whole)) or whole in self.constants:
            reason = "it is a view, a constant, or written as a whole"
            raise ValueError(f"{whole} has no room for the part {name}: {reason}")
        if self.dtype(name) != self.dtype(whole) or len(self.shape(name)) != len(self.shape(whole)):
            raise ValueError(f"{name} cannot be a part of {whole}: expected one element type and rank")

    def detach(self, name: str) -> None:
        """Let the part ``name`` be an array of its own again, in the layout that it has, gaps included."""
        del self._parts_of[self._parts.pop(name).whole][name]
        self._order.on_removal()

    def replace_parts_by_views(self, whole: str, view: str | None = None) -> None:
        """``whole`` (or a ``view`` of it) is no longer written here but comes from outside: its parts become views."""
        for name in self.parts_of(whole):
            starts, steps = self.part(name).starts, self.strides(whole)
            offset = sum(s * t for s, t in zip(starts, steps, strict=True))
            shown = self.add_view(view or whole, name, self.shape(name), steps, offset)
            self.detach(name)
            self.replace_parts_by_views(name, shown)
            self.replace_uses(name, shown)

    def add_part(self, whole: str, hint: str, starts: Sequence[Dim], shape: Sequence[Dim]) -> str:
        """An array of ``shape`` that is the box of ``whole`` which begins at ``starts``: one node writes it, others
        write the rest of ``whole``."""
        name = self.add_array(hint, shape, self.dtype(whole))
        self.attach(name, whole, [dim(s) for s in starts])
        return name

    def set_strides(self, name: str, strides: Sequence[Dim]) -> None:
        """Change the physical layout of an array; its views and parts select the same elements as before. ValueError,
        and nothing changed, for a view or part and where a view cannot follow."""
        if name in self._views or name in self._parts:
            raise ValueError(f"{name} is a view or part; its layout is fixed")
        steps, members = tuple(dim(s) for s in strides), within(self, name)
        layouts = {k: v for m in members for k, v in follow(self, m, self.strides(m), steps).items()}
        self._check_rows(dict.fromkeys(members[1:], steps), written=members[1:])
        self._lay_out(dict.fromkeys(members, (steps, 0)) | layouts)

    def _lay_out(self, layouts: dict[str, tuple[Shape, Dim]]) -> None:
        for view, (strides, offset) in layouts.items():
            self._descriptors[view] = replace(self._descriptors[view], strides=tuple(strides))
            if view in self._views:
                self._views[view] = (self._views[view][0], offset)

    def _read_instead(self, node: Node, connector: str, name: str) -> None:
        """Let ``node`` read ``name`` where it reads another array."""
        old = self.def_use.drop_read(node, connector)
        self.def_use.read(node, connector, name)
        if isinstance(node, KernelNode):
            node.kernel = node.kernel.over({old: name})

    @property
    def scope(self) -> Scopes:
        """Where each array lives; see :class:`daceopt.ir.graph.scopes.Scopes`."""
        return Scopes(self)

    def remove(self, node: Node) -> None:
        """Remove a compute node; arrays stay (see :meth:`prune`)."""
        self.def_use.remove(node)
        for name in node.kernel.locals if isinstance(node, KernelNode) else ():
            del self.locals[name]
        self._order.on_removal()

    def prune(self) -> int:
        """Remove nodes whose results nothing reads, and arrays without users; returns how many."""
        before = len(self.compute()) + len(self.arrays())
        for node in reversed(self.nodes()):
            if not getattr(node, "has_side_effects_", False):
                self._prune_node(node)
        self._detach_unread()
        self._drop_unused_arrays()
        return before - len(self.compute()) - len(self.arrays())

    def _prune_node(self, node: Node) -> None:
        unused = {connector: name for connector, name in self.def_use.writes(node).items() if not self.is_used(name)}
        if len(unused) == len(self.def_use.writes(node)):
            self.remove(node)
        elif isinstance(node, Operator):
            for connector in unused:
                self.drop_write(node, connector)

    def _detach_unread(self) -> None:
        """What nothing reads as a whole need not be put together: its parts are on their own."""
        for name, part in list(self._parts.items()):
            if not self.is_kept(part.whole) and not self.all_consumers(part.whole):
                self.detach(name)

    def _drop_unused_arrays(self) -> None:
        waiting = self.arrays()
        while waiting:
            name = waiting.pop()
            if self.has(name) and self._is_droppable(name):
                waiting += [self.view_source(name)] if self.is_view(name) else []  # which may be declared later
                self.drop(name)

    def _is_droppable(self, name: str) -> bool:
        if name in self.inputs or self.is_kept(name) or self.is_read(name):
            return False
        return self.is_view(name) or not self.is_written(name)

    def drop(self, name: str) -> None:
        """Remove an array that no node reads or writes."""
        del self._descriptors[name]
        if name in self._views:
            source, _ = self._views.pop(name)
            del self._views_of[source][name]
        self.constants.pop(name, None)

    # ---------------------------------------------------------------- whole graph

    def copy(self) -> Graph:
        """An independent copy; array names are the same."""
        memo: dict[int, Any] = {}
        twins = {node: copy.deepcopy(node, memo) for node in self.def_use}
        new = Graph.__new__(Graph)
        for name, value in vars(self).items():
            setattr(new, name, copy.copy(value) if isinstance(value, (list, dict, set)) else value)
        new.maker, new.source, new._order = Maker(), self.source.copy(), self._order.copy()
        new.def_use = self.def_use.over(twins)
        new.locals = {name: twins[n] for name, n in self.locals.items()}
        for table in ("_views_of", "_parts_of"):
            setattr(new, table, {name: dict(below) for name, below in getattr(self, table).items()})
        return new

    def validate(self) -> None:
        """Raise ``ValueError`` when an invariant does not hold."""
        validation.check(self, self.nodes())
        if self.nodes() != self._order.copy().of(self):
            raise ValueError(f"graph {self.name} was edited past its methods: its order is another than it says")

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes())
