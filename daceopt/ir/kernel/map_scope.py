"""Kernels as map scopes of DaCe, around a tasklet for each statement: what its transformations work on."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import ClassVar

import dace
import dace.library
import sympy
from dace import nodes, subsets
from dace.memlet import Memlet
from dace.transformation.transformation import ExpandTransformation

from daceopt.ir.kernel.kernel import Access, Kernel, Stage
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


@dace.library.expansion
class ExpandKernel(ExpandTransformation):
    """A kernel as a nested SDFG of one map scope, whose arrays are called like the connectors of the node."""

    environments: ClassVar[list[type]] = []

    @staticmethod
    def expansion(node: nodes.LibraryNode, state: dace.SDFGState, sdfg: dace.SDFG) -> dace.SDFG:
        """``node``: a ``KernelNode`` of ``state``."""
        nested = dace.SDFG(node.label)
        connectors = {e.data.data: e.dst_conn for e in state.in_edges(node)}
        connectors |= {e.data.data: e.src_conn for e in state.out_edges(node)}
        for name, connector in connectors.items():
            desc = sdfg.arrays[name]
            nested.add_array(connector, desc.shape, desc.dtype, strides=desc.strides, total_size=desc.total_size)
        inner = nested.add_state("main", is_start_block=True)
        access = {connector: inner.add_access(connector) for connector in connectors.values()}
        MapScope(inner, node.kernel.over(connectors), access.__getitem__)
        for symbol in nested.free_symbols - nested.symbols.keys():
            nested.add_symbol(symbol, dace.int64)
        return nested


def whole_memlet(name: str, desc: dace.data.Data, wcr: str | None = None) -> Memlet:
    """All elements of the array ``name``, with their number, which DaCe derives by symbolic arithmetic otherwise."""
    return Memlet(data=name, subset=subsets.Range.from_array(desc), volume=sympy.Mul(*desc.shape), wcr=wcr)


class MapScope:
    """The map scope of ``kernel`` in ``state``, around a tasklet for each statement.

    ``access``: gives the access node of an array outside of the scope. The kernel's locals become arrays of the SDFG.
    """

    def __init__(self, state: dace.SDFGState, kernel: Kernel, access: Callable[[str], nodes.AccessNode]) -> None:
        self._state, self._kernel, self._sdfg = state, kernel, state.sdfg
        self._outer = kernel.outer if len(kernel.stages) > 1 or kernel.locals else kernel.stages[0].params
        self.entry, self._exit = self._add_map(kernel.label, self._outer)
        self._local = {name: self._add_local(name) for name in kernel.locals}
        self._local |= {name: self._state.add_access(name) for name in sorted(kernel.forwarded_arrays())}
        versions = list(self._local.values())
        for k, stage in enumerate(kernel.stages):
            self._add_stage(k, stage)
            versions += [node for node in self._local.values() if node not in versions]
        self._connect_outside(versions, access)

    def _add_map(
        self, label: str, params: Iterable[sympy.Symbol], schedule: dace.ScheduleType = dace.ScheduleType.Default
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
        self._sdfg.add_array(name, shape, dtype, transient=True, storage=dace.StorageType.Register)
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
            dtype = types.compute_type(self._sdfg.arrays[access.array].dtype)
            inputs[connector] = dace.pointer(dtype) if None in access.index else dtype
        tasklet = SymbolicTasklet(label, inputs, stage.assignments, list(stage.writes))
        # a whole dimension of extent 1 looks like one element in a memlet
        tasklet.whole_dimensions = {c: {d for d, e in enumerate(a.index) if e is None} for c, a in stage.reads.items()}
        return tasklet

    def _memlet(self, access: Access) -> Memlet:
        shape, index = self._sdfg.arrays[access.array].shape, access.index or (0,)
        ranges = [(0, n - 1, 1) if e is None else (e, e, 1) for e, n in zip(index, shape)]
        read = sympy.Mul(*(n for e, n in zip(index, shape) if e is None))
        wcr = _WCR[access.wcr] if access.wcr else None
        return Memlet(data=access.array, subset=subsets.Range(ranges), volume=read, wcr=wcr)

    def _connect_outside(self, inside: Iterable[nodes.AccessNode], access: Callable[[str], nodes.AccessNode]) -> None:
        """From the arrays around the scope to it and back; ``inside``: access nodes of locals, and of arrays of which
        one statement reads what another has written."""
        state, entry, exit_ = self._state, self.entry, self._exit
        for node in (n for n in inside if n.data not in self._kernel.locals):
            exit_.add_in_connector(f"IN_{node.data}")
            exit_.add_out_connector(f"OUT_{node.data}")
            state.add_edge(node, None, exit_, f"IN_{node.data}", self._whole(node.data))
        for connector in entry.in_connectors:
            name = connector[len("IN_") :]
            state.add_edge(access(name), None, entry, connector, self._whole(name))
        wcr = {e.dst_conn: _wcr(e.data) for e in state.in_edges(exit_) if e.dst_conn}
        for connector in list(exit_.in_connectors):
            name = connector[len("IN_") :]
            state.add_edge(exit_, f"OUT_{name}", access(name), None, self._whole(name, wcr[connector]))
        for node in inside:
            if state.in_degree(node) == 0:
                state.add_edge(entry, None, node, None, Memlet())
            if state.out_degree(node) == 0:
                state.add_edge(node, None, exit_, None, Memlet())

    def _whole(self, name: str, wcr: str | None = None) -> Memlet:
        return whole_memlet(name, self._sdfg.arrays[name], wcr)


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
            state.add_edge(current, out, node, port_in, whole_memlet(memlet.data, state.sdfg.arrays[memlet.data]))
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
        memlet = whole_memlet(memlet.data, state.sdfg.arrays[memlet.data], _wcr(memlet))
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


def _wcr(memlet: Memlet) -> str | None:
    """The reduction of a memlet as Python code."""
    if memlet.wcr is None or isinstance(memlet.wcr, str):
        return memlet.wcr
    return ast.unparse(memlet.wcr)
