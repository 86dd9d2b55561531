"""A graph as an SDFG of plain DaCe: maps, tasklets of C++, states and loops, which need nothing of daceopt.

The frame of a program calls printed kernels over flat memory. Here each kernel is a map over the arrays as they are,
and each node has a state of its own, so that the order of states is that of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dace
import numpy as np
from dace import nodes, subsets
from dace.memlet import Memlet

from daceopt.codegen.code_flow import size_text
from daceopt.codegen.cpu.map_source import MapSource, TaskletPointer, map_source
from daceopt.codegen.frame_walk import FrameWalk
from daceopt.codegen.kernel_unit import support_header
from daceopt.codegen.regions import FrameBuffer
from daceopt.codegen.sdfg_flow import SdfgFlow
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.interpreter.buffers import as_strided
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim

# DaCe compiles with -ffast-math, which would take masks of -inf and NaN for numbers
_STRICT = '#if defined(__GNUC__) && !defined(__clang__)\n#pragma GCC optimize("no-fast-math")\n#endif\n'
_HEADERS = "#include <algorithm>\n#include <cstdint>\n#include <cstdio>\n#include <cstdlib>\n#include <cstring>\n"
EMBEDDED = 1 << 12  # elements of a constant that is in the code; larger ones are arguments


class PlainFrame(FrameWalk):
    """Builds ``sdfg``. Library nodes of ``graph`` must be C++ tasklets over whole arrays by now.

    ``support``: what their code calls. ``arguments``: constants that are too large for the code, by name.
    """

    def __init__(self, graph: Graph, support: str = ""):
        self._top = graph
        self._code: list[str] = []
        self.arguments = {n: v for n, v in graph.constants.items() if v.size > EMBEDDED}
        self.sdfg = dace.SDFG(graph.name)
        self._states = SdfgFlow(self.sdfg)
        super().__init__(graph, self._states)
        for name in graph.size_names:
            self._states.declare(name)
        self._embed_constants()
        for node in graph.nodes():
            self._add(node)
        for name in (*graph.inputs, *graph.outputs, *graph.saved):
            self._buffer(self._scope.place(name)[0])
        self._touch_what_loops_share()
        self.sdfg.append_global_code(_STRICT + _HEADERS + support_header("\n".join(self._code)) + support)

    # ---------------------------------------------------------------- arrays

    def _buffer(self, buffer: FrameBuffer) -> str:
        name = buffer.name
        if name in self.sdfg.arrays:
            return name
        dtype = types.bits(buffer.dtype)
        if not self._top.has(name) and name != SEED:
            self.sdfg.add_array(name, (buffer.elements,), dtype, transient=True)
            return name
        if name == SEED:
            self.sdfg.add_array(name, (1,), dtype)
            return name
        desc = self._top.desc(name)
        is_visible = name in (*self._top.inputs, *self._top.outputs, *self._top.saved, *self.arguments)
        layout = {"strides": desc.strides or (1,), "total_size": desc.total_size}
        self.sdfg.add_array(name, desc.shape or (1,), dtype, transient=not is_visible, **layout)
        return name

    def _touch_what_loops_share(self) -> None:
        """Let the first state seem to write the arrays that several states of loops use: DaCe 1.0.2 looks for the state
        that uses an array first among those outside of loops when it frees that array."""
        states: dict[str, list[dace.SDFGState]] = {}
        for state in self.sdfg.states():
            for name in dict.fromkeys(n.data for n in state.data_nodes() if self.sdfg.arrays[n.data].transient):
                states.setdefault(name, []).append(state)
        shared = [
            n for n, users in states.items() if len(users) > 1 and any(u.parent_graph is not self.sdfg for u in users)
        ]
        if not shared:
            return
        first = self.sdfg.start_block
        outputs = {f"Out_{k}": dace.pointer(self.sdfg.arrays[name].dtype) for k, name in enumerate(shared)}
        tasklet = nodes.Tasklet("allocated", {}, outputs, "", dace.Language.CPP)
        first.add_node(tasklet)
        for connector, name in zip(outputs, shared):
            first.add_edge(tasklet, connector, first.add_access(name), None, Memlet(data=name, dynamic=True))

    def _embed_constants(self) -> None:
        """Before the first node: small constants, from the code."""
        for name in (n for n in self._top.constants if n not in self.arguments and self._top.all_consumers(n)):
            self._embed(self._buffer(self._scope.place(name)[0]), self._top.constants[name])

    def _embed(self, name: str, value: np.ndarray) -> None:
        """Write a constant from the code; its bytes as integers, so that no number changes on the way."""
        raw = np.ascontiguousarray(_memory_image(self._top, name, value)).view(np.uint8)
        data = f"static const uint8_t bytes[] = {{{', '.join(map(str, raw.reshape(-1).tolist()))}}};"
        self._tasklet("constant", f"{data}\nmemcpy(Out_0, bytes, sizeof bytes);", {}, {"Out_0": name})

    def _element(self, name: str) -> str:
        """Control flow reads a copy of its own: the array may have any layout."""
        buffer, offset = self._scope.place(name)
        copy = f"{self._buffer(buffer)}_of_{len(self.sdfg.arrays)}"
        self.sdfg.add_array(copy, (1,), types.bits(buffer.dtype), transient=True)
        code = f"Out_0[0] = In_0[{size_text(offset)}];"
        self._tasklet("element", code, {"In_0": buffer.name}, {"Out_0": copy})
        return f"{copy}[0]"

    # ---------------------------------------------------------------- nodes

    def _kernel(self, entry: KernelNode) -> None:
        graph = self._scope.graph
        kernel = entry.kernel
        moved = [name for name in graph.arrays() if self._is_moved(name)]
        self._map(kernel.label, map_source(graph, kernel, moved))

    def _is_moved(self, name: str) -> bool:
        """Is the array in a buffer that is laid out otherwise?"""
        buffer, start = self._scope.place(name)
        return self._scope.graph is not self._top or start != 0 or buffer.name != name

    def _map(self, label: str, source: MapSource) -> None:
        self._code.append(source.code)
        places = {p: self._scope.place(p.argument.array) for p in source.pointers}
        moved = [f"{p.connector} += {size_text(start)};" for p, (_, start) in places.items() if start != 0]
        reads = {p.connector: p for p in source.pointers if not p.written}
        writes = {p.connector: p for p in source.pointers if p.written}
        code = "\n".join([*moved, source.code])
        tasklet = nodes.Tasklet(label, self._types(reads), self._types(writes), code, dace.Language.CPP)
        names = {p: self._buffer(buffer) for p, (buffer, _) in places.items()}
        state = self._states.fresh()
        state.add_node(tasklet)
        around = self._scope_around(state, label, source)
        memlets = {p: self._memlet(p, name) for p, name in names.items()}
        accesses = {n: state.add_access(n) for n in dict.fromkeys(names[p] for p in reads.values())}
        results = {n: state.add_access(n) for n in dict.fromkeys(names[p] for p in writes.values())}
        for connector, p in reads.items():
            _enter(state, accesses[names[p]], around[0], tasklet, connector, memlets[p])
        for connector, p in writes.items():
            _leave(state, tasklet, connector, around[1], results[names[p]], memlets[p])
        if around[0] is not None and not reads:
            state.add_edge(around[0], None, tasklet, None, Memlet())

    def _scope_around(self, state: dace.SDFGState, label: str, source: MapSource) -> tuple[Any, Any]:
        if not source.parameters:
            return None, None
        ranges = {name: subsets.Range([(0, n - 1, 1)]) for name, n in source.parameters.items()}
        entry, exit_ = state.add_map(label, ranges)
        return entry, exit_

    def _memlet(self, pointer: TaskletPointer, name: str) -> Memlet:
        return self._whole(name) if pointer.subset is None else Memlet(data=name, subset=pointer.subset)

    def _library_call(self, node: nodes.Tasklet) -> None:
        graph = self._scope.graph
        declared = {**node.in_connectors, **node.out_connectors}
        reads: dict[str, str] = {}
        writes: dict[str, str] = {}
        lines = []
        for operands, names, stem in ((graph.reads(node), reads, "In"), (graph.writes(node), writes, "Out")):
            for c, name in operands.items():
                buffer, offset = self._scope.place(name)
                names[f"{stem}_{c}"] = self._buffer(buffer)
                lines.append(f"{declared[c].ctype} {c} = {stem}_{c} + {size_text(offset)};")
        self._tasklet(node.label, "\n".join([*lines, node.code.as_string]), reads, writes)

    def _move(self, name: str, buffer: FrameBuffer, offset: Dim, *, into: bool) -> None:
        theirs, start = self._scope.place(name)
        size = size_text(self._scope.graph.size(name))
        target, source = (buffer, theirs) if into else (theirs, buffer)
        starts = (offset, start) if into else (start, offset)
        left, right = map(size_text, starts)
        code = f"memcpy(Out_0 + {left}, In_0 + {right}, {size} * sizeof(*Out_0));"
        self._tasklet("carry", code, {"In_0": self._buffer(source)}, {"Out_0": self._buffer(target)})

    def _check(self, node: Node, test: Callable[[], str] | None) -> None:
        """Loops whose number of iterations is known when running are checked by the programs of daceopt alone."""

    def _value(self, buffer: FrameBuffer, index: str) -> str:
        return f"{self._buffer(buffer)}[{index}]"

    def _tasklet(self, label: str, code: str, reads: Mapping[str, str], writes: Mapping[str, str]) -> None:
        """A state with a tasklet over whole arrays."""
        self._code.append(code)
        state = self._states.fresh()
        pointers = ({c: dace.pointer(self.sdfg.arrays[n].dtype) for c, n in names.items()} for names in (reads, writes))
        tasklet = nodes.Tasklet(label, *pointers, code, dace.Language.CPP)
        state.add_node(tasklet)
        for connector, name in reads.items():
            state.add_edge(state.add_access(name), None, tasklet, connector, self._whole(name))
        for connector, name in writes.items():
            state.add_edge(tasklet, connector, state.add_access(name), None, self._whole(name))

    def _types(self, pointers: Mapping[str, TaskletPointer]) -> dict[str, Any]:
        return {c: dace.pointer(types.bits(p.argument.dtype)) for c, p in pointers.items()}

    def _whole(self, name: str) -> Memlet:
        return Memlet.from_array(name, self.sdfg.arrays[name])


def _enter(
    state: dace.SDFGState, source: nodes.AccessNode, entry: Any, tasklet: Any, connector: str, memlet: Memlet
) -> None:
    """Lead what is read into the map, if there is one."""
    if entry is None:
        state.add_edge(source, None, tasklet, connector, memlet)
        return
    port = f"IN_{source.data}"
    if port not in entry.in_connectors:
        entry.add_in_connector(port)
        state.add_edge(source, None, entry, port, Memlet.from_array(source.data, state.sdfg.arrays[source.data]))
    entry.add_out_connector(f"OUT_{source.data}")
    state.add_edge(entry, f"OUT_{source.data}", tasklet, connector, memlet)


def _leave(
    state: dace.SDFGState, tasklet: Any, connector: str, exit_: Any, target: nodes.AccessNode, memlet: Memlet
) -> None:
    """Lead what is written out of the map, if there is one."""
    if exit_ is None:
        state.add_edge(tasklet, connector, target, None, memlet)
        return
    port = f"OUT_{target.data}"
    if port not in exit_.out_connectors:
        exit_.add_out_connector(port)
        state.add_edge(exit_, port, target, None, Memlet.from_array(target.data, state.sdfg.arrays[target.data]))
    exit_.add_in_connector(f"IN_{target.data}")
    state.add_edge(tasklet, connector, exit_, f"IN_{target.data}", memlet)


def _memory_image(graph: Graph, name: str, value: np.ndarray) -> np.ndarray:
    """A constant as it is in memory."""
    span = 1 + sum(max(int(n) - 1, 0) * int(s) for n, s in zip(graph.shape(name), graph.strides(name), strict=True))
    flat = np.zeros(span, types.to_numpy(graph.dtype(name)))
    as_strided(flat, value.shape, [int(s) for s in graph.strides(name)])[...] = value
    return flat
