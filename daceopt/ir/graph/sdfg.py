"""Graphs as SDFGs of DaCe: one state, an access node for each array, memlets of whole arrays; kernels as library nodes,
or as map scopes around tasklets, for transformations of DaCe."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dace
import sympy
from dace import nodes, subsets
from dace.memlet import Memlet

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import SymbolicTasklet
from daceopt.ir.scalar import types
from daceopt.ir.scalar.symbols import Parameter

_WCR = {
    "sum": "lambda a, b: a + b",
    "prod": "lambda a, b: a * b",
    "max": "lambda a, b: max(a, b)",
    "min": "lambda a, b: min(a, b)",
}
_IN_ORDER = dace.ScheduleType.Sequential  # of the maps over a kernel's serial parameters
_ONCE = Parameter("i_once")  # the loop of a scope without loops


@dataclass(frozen=True)
class GraphSdfg:
    """A graph in DaCe's words. ``original``: node of the state, a map scope by its entry -> node of the graph."""

    sdfg: dace.SDFG
    state: dace.SDFGState
    original: dict[Any, Node]


def sdfg_of(graph: Graph) -> GraphSdfg:
    """``graph`` with its own nodes, kernels among them, as nodes of a state. Arrays that nothing touches have no access
    node: DaCe refuses those without edges."""
    return _Writer(graph).write(lambda writer, node: writer.add_node(node, node))


def expand(graph: Graph) -> GraphSdfg:
    """``graph`` with copies of its nodes, and a map scope in the place of each kernel."""
    return _Writer(graph).write(_Writer.add_copy)


class _Writer:
    """Builds the SDFG of ``graph``."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.sdfg = graph, dace.SDFG(graph.name)
        self.state = self.sdfg.add_state("main", is_start_block=True)
        # without it DaCe inspects the whole Python call stack for each access node: up to 60 ms
        self.state.set_default_lineinfo(dace.dtypes.DebugInfo(0))
        self._nodes: dict[str, nodes.AccessNode] = {}
        self._original: dict[Any, Node] = {}

    def write(self, add: Callable[[_Writer, Node], None]) -> GraphSdfg:
        """Add all arrays, and each node by ``add``."""
        for name in self.graph.size_names:
            self.sdfg.add_symbol(name, dace.int64)
        for name in self.graph.arrays():
            self._declare(name)
        for node in self.graph.compute():
            add(self, node)
        for name in self.graph.arrays():
            self._connect(name)
        return GraphSdfg(self.sdfg, self.state, self._original)

    def access(self, name: str) -> nodes.AccessNode:
        """The access node of the array ``name``."""
        if name not in self._nodes:
            self._nodes[name] = self.state.add_access(name)
        return self._nodes[name]

    def whole(self, name: str, wcr: str | None = None) -> Memlet:
        """All elements of an array."""
        return _whole(name, self.sdfg.arrays[name], wcr)

    def add_node(self, node: Node, original: Node) -> None:
        """``node``, which reads and writes what ``original`` does in the graph."""
        self._original[node] = original
        self.state.add_node(node)
        for connector, name in self.graph.reads(original).items():
            self.state.add_edge(self.access(name), None, node, connector, self.whole(name))
        for connector, name in self.graph.writes(original).items():
            self.state.add_edge(node, connector, self.access(name), None, self.whole(name))

    def add_copy(self, node: Node) -> None:
        """A copy of ``node``, or its map scope."""
        if isinstance(node, KernelNode):
            self._original[_Scope(self, node.kernel).entry] = node
        else:
            self.add_node(copy.deepcopy(node), node)

    def _declare(self, name: str) -> None:
        graph = self.graph
        desc, add = graph.desc(name), self.sdfg.add_view if graph.is_view(name) else self.sdfg.add_array
        options = {} if graph.is_view(name) else {"transient": graph.is_transient(name)}
        strides = desc.strides or (1,)
        add(name, desc.shape or (1,), desc.dtype, strides=strides, total_size=desc.total_size, **options)

    def _connect(self, name: str) -> None:
        """The edge from an array to a view of it, or from a part to its whole."""
        graph = self.graph
        if graph.is_view(name):
            node, source = self.access(name), graph.view_source(name)
            node.add_in_connector("views")
            self.state.add_edge(self.access(source), None, node, "views", self.whole(source))
        if graph.is_part(name):
            whole, starts = graph.part(name)
            memlet = _copied_memlet(name, starts, graph.shape(name))
            self.state.add_edge(self.access(name), None, self.access(whole), None, memlet)


def _copied_memlet(name: str, starts: Iterable[Any], extents: Iterable[Any]) -> Memlet:
    """What DaCe says of a part: it is copied into its box. It stands there already."""
    own, box = [], []
    for start, extent in zip(starts, extents, strict=True):
        own.append((0, extent - 1, 1))
        box.append((start, start + extent - 1, 1))
    return Memlet(data=name, subset=subsets.Range(own), other_subset=subsets.Range(box))


def _whole(name: str, desc: dace.data.Data, wcr: str | None = None) -> Memlet:
    """All elements of the array ``name``. The volume is given: DaCe finds it by symbolic arithmetic on ranges."""
    return Memlet(data=name, subset=subsets.Range.from_array(desc), volume=sympy.Mul(*desc.shape), wcr=wcr)


class _Scope:
    """The map scope of ``kernel``."""

    def __init__(self, writer: _Writer, kernel: Kernel) -> None:
        self._writer, self._kernel, self._state = writer, kernel, writer.state
        self._outer = kernel.outer if len(kernel.stages) > 1 or kernel.locals else kernel.stages[0].params
        self.entry, self._exit = self._add_map(kernel.label, self._outer)
        self._local = {name: self._add_local(name) for name in kernel.locals}
        self._local |= {name: self._state.add_access(name) for name in sorted(kernel.forwarded_arrays())}
        versions = list(self._local.values())
        for k, stage in enumerate(kernel.stages):
            self._add_stage(k, stage)
            versions += [node for node in self._local.values() if node not in versions]
        _connect_outside(writer, self.entry, self._exit, versions)

    def _add_map(
        self, label: str, params: Iterable[sympy.Symbol], schedule: Any = dace.ScheduleType.Default
    ) -> tuple[nodes.MapEntry, nodes.MapExit]:
        params = tuple(params)
        names = [str(p) for p in params] or [str(_ONCE)]
        ranges = [(0, self._kernel.extents[p] - 1, 1) for p in params] or [(0, 0, 1)]
        map_ = nodes.Map(label, names, subsets.Range(ranges), schedule)
        pair = nodes.MapEntry(map_), nodes.MapExit(map_)
        for node in pair:
            self._state.add_node(node)
        return pair

    def _add_local(self, name: str) -> nodes.AccessNode:
        dtype, shape = self._kernel.locals[name]
        self._writer.sdfg.add_array(name, shape, dtype, transient=True, storage=dace.StorageType.Register)
        return self._state.add_access(name)

    def _add_stage(self, k: int, stage: Stage) -> None:
        kernel, label = self._kernel, f"{self._kernel.label}_{k}"
        tasklet = self._tasklet(label, stage)
        self._state.add_node(tasklet)
        serial = [p for p in kernel.serial if p in stage.params and p not in self._outer]
        inner = tuple(p for p in stage.params if p not in self._outer and p not in kernel.serial)
        around = [self._add_map(f"{label}_{p}", (p,), _IN_ORDER) for p in serial]
        around += [self._add_map(label, inner)] if inner else []
        for connector, access in stage.reads.items():
            source = self._local.get(access.array, self.entry)
            _connect_read(self._state, source, around, tasklet, connector, self._memlet(access))
        for connector, access in stage.writes.items():
            array = access.array
            if array in self._local and _is_used(self._state, self._local[array]):
                self._local[array] = self._state.add_access(array)  # its value from here on
            sink = self._local.get(array, self._exit)
            _connect_write(self._state, tasklet, connector, around, sink, self._memlet(access))
        _keep_inside(self._state, self.entry, self._exit, around, tasklet)

    def _tasklet(self, label: str, stage: Stage) -> SymbolicTasklet:
        inputs = {}
        for connector, access in stage.reads.items():
            own = self._kernel.locals.get(access.array)
            dtype = types.compute_type(own[0] if own else self._writer.graph.dtype(access.array))
            inputs[connector] = dace.pointer(dtype) if None in access.index else dtype
        tasklet = SymbolicTasklet(label, inputs, stage.assignments, list(stage.writes))
        # a whole dimension of extent 1 looks like one element in a memlet
        tasklet.whole_dimensions = {c: {d for d, e in enumerate(a.index) if e is None} for c, a in stage.reads.items()}
        return tasklet

    def _memlet(self, access: Access) -> Memlet:
        own = self._kernel.locals.get(access.array)
        shape = own[1] if own else self._writer.graph.shape(access.array) or (1,)
        index = access.index or (0,)
        ranges = [(0, n - 1, 1) if e is None else (e, e, 1) for e, n in zip(index, shape)]
        read = sympy.Mul(*(n for e, n in zip(index, shape) if e is None))
        wcr = _WCR[access.wcr] if access.wcr else None
        return Memlet(data=access.array, subset=subsets.Range(ranges), volume=read, wcr=wcr)


def _connect_read(state, source, around, tasklet, conn, memlet) -> None:  # type: ignore[no-untyped-def]
    """From ``source`` to a tasklet; ``around``: the scopes inside of the kernel's own, outermost first."""
    current, out = source, None
    if isinstance(source, nodes.MapEntry):
        out = _port(source, memlet.data)
    for node, _ in around:
        port_in, port_out = f"IN_{memlet.data}", f"OUT_{memlet.data}"
        if port_in not in node.in_connectors:
            node.add_in_connector(port_in)
            node.add_out_connector(port_out)
            state.add_edge(current, out, node, port_in, _whole(memlet.data, state.sdfg.arrays[memlet.data]))
        current, out = node, port_out
    state.add_edge(current, out, tasklet, conn, memlet)


def _connect_write(state, tasklet, conn, around, sink, memlet) -> None:  # type: ignore[no-untyped-def]
    """From a tasklet to ``sink``."""
    current, out = tasklet, conn
    for _, node in reversed(around):
        node.add_in_connector(f"IN_{memlet.data}")
        node.add_out_connector(f"OUT_{memlet.data}")
        state.add_edge(current, out, node, f"IN_{memlet.data}", memlet)
        current, out = node, f"OUT_{memlet.data}"
        memlet = _whole(memlet.data, state.sdfg.arrays[memlet.data], _wcr(memlet))
    target = None
    if isinstance(sink, nodes.MapExit):
        target = f"IN_{memlet.data}"
        sink.add_in_connector(target)
        sink.add_out_connector(f"OUT_{memlet.data}")
    state.add_edge(current, out, sink, target, memlet)


def _is_used(state, node) -> bool:  # type: ignore[no-untyped-def]
    """Has the node an edge?"""
    return bool(state.in_degree(node) or state.out_degree(node))


def _port(entry: nodes.MapEntry, array: str) -> str:
    entry.add_in_connector(f"IN_{array}")
    entry.add_out_connector(f"OUT_{array}")
    return f"OUT_{array}"


def _keep_inside(state, entry, exit_, around, tasklet) -> None:  # type: ignore[no-untyped-def]
    """A node without data from its scope's entry still belongs to the scope: an empty edge says so."""
    down = [entry, *(first for first, _ in around), tasklet]
    up = [tasklet, *(last for _, last in reversed(around)), exit_]
    for before, node in pairwise(down):
        if state.in_degree(node) == 0:
            state.add_edge(before, None, node, None, Memlet())
    for node, after in pairwise(up):
        if state.out_degree(node) == 0:
            state.add_edge(node, None, after, None, Memlet())


def _connect_outside(
    writer: _Writer, entry: nodes.MapEntry, exit_: nodes.MapExit, local: Iterable[nodes.AccessNode]
) -> None:
    """From the arrays of the graph to the scope and back; ``local``: access nodes inside of it, of which some are of
    arrays that the graph has, too."""
    state = writer.state
    for node in (n for n in local if writer.graph.has(n.data)):
        exit_.add_in_connector(f"IN_{node.data}")
        exit_.add_out_connector(f"OUT_{node.data}")
        state.add_edge(node, None, exit_, f"IN_{node.data}", writer.whole(node.data))
    for conn in entry.in_connectors:
        name = conn[len("IN_") :]
        state.add_edge(writer.access(name), None, entry, conn, writer.whole(name))
    wcr = {e.dst_conn: _wcr(e.data) for e in state.in_edges(exit_) if e.dst_conn}
    for conn in list(exit_.in_connectors):
        name = conn[len("IN_") :]
        state.add_edge(exit_, f"OUT_{name}", writer.access(name), None, writer.whole(name, wcr[conn]))
    for node in local:
        if state.in_degree(node) == 0:
            state.add_edge(entry, None, node, None, Memlet())
        if state.out_degree(node) == 0:
            state.add_edge(node, None, exit_, None, Memlet())


def _wcr(memlet: Memlet) -> str | None:
    """The reduction of a memlet as Python code."""
    if memlet.wcr is None or isinstance(memlet.wcr, str):
        return memlet.wcr
    return ast.unparse(memlet.wcr)
