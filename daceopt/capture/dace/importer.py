"""A program of DaCe becomes a graph: states one after the other, each array a new one wherever it is written."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dace
import sympy
from dace.sdfg import nodes
from dace.transformation.interstate import LoopUnroll

from daceopt.capture.dace import libraries, numpy_constants
from daceopt.capture.dace.index_text import to_dim
from daceopt.capture.dace.scopes import Loops, ScopeReader, reduction
from daceopt.capture.dace.values import Deposit, ElementBox, overlaid, window
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Shape, dim, row_major
from daceopt.ir.scalar.symbols import size
from daceopt.ir.scalar.types import DType

numpy_constants.install()  # once: a module runs once


@dataclass(frozen=True)
class ImportedSdfg:
    """``graph``, and what its inputs and outputs are called in the program."""

    graph: Graph
    inputs: list[str]
    outputs: list[str]


def import_sdfg(sdfg: dace.SDFG, sizes: Mapping[str, int] | None = None) -> ImportedSdfg:
    """The graph of ``sdfg``, which stays as it is. ``sizes``: values of symbols that are to be numbers.

    Arguments that the program reads are inputs; what it returns, and arguments that it writes, are outputs. Loops over
    states must have numbers as bounds: they are unrolled. Raises Unsupported, with the state and the node, for all that
    is no dataflow of maps, tasklets in Python, products, reductions, copies and views.
    """
    return _Importer(_simplify(sdfg, sizes or {})).run()


def _simplify(sdfg: dace.SDFG, sizes: Mapping[str, int]) -> dace.SDFG:
    """A copy in which symbols are numbers, calls are inlined, loops unrolled and states fused."""
    copied = copy.deepcopy(sdfg)
    if unknown := sorted(set(sizes) - set(map(str, copied.free_symbols)) - set(copied.symbols)):
        raise Unsupported(f"the program has no symbol {unknown[0]!r}; it has {sorted(copied.symbols)}")
    if sizes:
        copied.replace_dict({name: str(value) for name, value in sizes.items()})
        for name in sizes:
            copied.symbols.pop(name, None)
    copied.simplify()
    if copied.apply_transformations_repeated(LoopUnroll):
        copied.simplify()
    return copied


class _Importer:
    def __init__(self, sdfg: dace.SDFG):
        self._sdfg = sdfg
        self._graph = Graph(sdfg.name)
        self._b = Builder(self._graph)
        self._sizes: dict[str, Any] = {}  # symbol of the program -> what it is here
        self._current: dict[str, str] = {}  # array of the program -> what is in it now
        self._nodes: dict[nodes.AccessNode, str] = {}  # what an access node of the state at hand holds
        self._deposits: dict[nodes.AccessNode, list[Deposit]] = {}
        self._input_of: dict[str, str] = {}  # argument -> input of the graph
        self._written: set[str] = set()

    def run(self) -> ImportedSdfg:
        self._declare_sizes()
        for state in self._states():
            self._state(state)
        return self._finish()

    # ---------------------------------------------------------------- arguments

    def _arguments(self) -> list[str]:
        """Arrays of the caller, in the order of the program's signature where it has one."""
        own = [n for n, desc in self._sdfg.arrays.items() if not desc.transient]
        listed = [n for n in self._sdfg.arg_names if n in own]
        return [*listed, *(n for n in sorted(own) if n not in listed)]

    def _declare_sizes(self) -> None:
        """A symbol that is an extent of an argument is a size, named in the order of its first use."""
        for name in self._arguments():
            for extent in self._sdfg.arrays[name].shape:
                symbol = str(extent)
                if getattr(extent, "is_Symbol", False) and symbol not in self._sizes:
                    self._sizes[symbol] = size(f"s{len(self._sizes)}")

    def _shape(self, data: str) -> Shape:
        desc = self._sdfg.arrays[data]
        if isinstance(desc, dace.data.Scalar):
            return ()
        return tuple(to_dim(n, self._sizes, f"array {data!r}") for n in desc.shape)

    def _dtype(self, data: str) -> DType:
        try:
            return types.from_numpy(self._sdfg.arrays[data].dtype.type)
        except (Unsupported, TypeError, KeyError) as error:
            dtype = self._sdfg.arrays[data].dtype
            raise Unsupported(f"array {data!r} has element type {dtype}; expected real numbers or bool") from error

    def _check(self, data: str) -> None:
        """Raise Unsupported for containers that are no dense arrays."""
        desc = self._sdfg.arrays[data]
        if not isinstance(desc, (dace.data.Array, dace.data.Scalar)):
            raise Unsupported(f"{data!r} is a {type(desc).__name__}; expected arrays and scalars")

    def _value(self, data: str) -> str:
        """What is in an array now: of an argument what the caller gave, elsewhere zeros."""
        self._check(data)
        if data not in self._current:
            shape, dtype = self._shape(data), self._dtype(data)
            if self._sdfg.arrays[data].transient:
                self._current[data] = self._b.full(shape, 0, dtype)
            else:
                self._input_of[data] = self._current[data] = self._graph.add_input(data, shape, dtype)
        return self._current[data]

    # ---------------------------------------------------------------- states

    def _states(self) -> Iterator[dace.SDFGState]:
        block: Any = self._sdfg.start_block
        visited = set()
        while block is not None:
            if not isinstance(block, dace.SDFGState):
                raise Unsupported(f"{type(block).__name__} {block.label!r}: expected states one after the other")
            visited.add(block)
            yield block
            block = self._next(block, visited)

    def _next(
        self, state: dace.SDFGState, visited: set[dace.sdfg.state.ControlFlowBlock]
    ) -> dace.sdfg.state.ControlFlowBlock | None:
        edges = self._sdfg.out_edges(state)
        if not edges:
            return None
        conditions = ", ".join(e.data.condition.as_string for e in edges)
        if len(edges) > 1 or not edges[0].data.is_unconditional() or edges[0].dst in visited:
            reason = "is a loop whose bounds are no numbers, or a choice"
            hint = "give sizes= for bounds, or write choices as `a if condition else b`"
            raise Unsupported(f"state {state.label!r} is left by {conditions}: it {reason}; {hint}")
        for name, value in edges[0].data.assignments.items():
            self._sizes[name] = to_dim(dace.symbolic.pystr_to_symbolic(value), self._sizes, f"state {state.label!r}")
        return edges[0].dst

    def _state(self, state: dace.SDFGState) -> None:
        self._nodes, self._deposits = {}, {}
        children = state.scope_children()[None]
        for node in dace.sdfg.utils.dfs_topological_sort(state):
            if node in children:
                self._node(state, node)

    def _node(self, state: dace.SDFGState, node: nodes.Node) -> None:
        reader = ScopeReader(self._b, state, self._sizes, self._hold_library_node, self._deposit)
        if isinstance(node, nodes.AccessNode):
            self._access(state, node)
        elif isinstance(node, nodes.MapEntry):
            reader.scope(node)
        elif isinstance(node, nodes.Tasklet):
            reader.tasklet(node, Loops())
        elif type(node).__name__ == "Reduce":
            self._reduce(state, node)
        elif isinstance(node, nodes.LibraryNode):
            self._library(state, node)
        elif not isinstance(node, nodes.MapExit):
            raise Unsupported(f"state {state.label!r}: {type(node).__name__} {node.label!r} is not supported")

    def _hold_library_node(self, node: nodes.AccessNode) -> str:
        return self._nodes[node]

    def _deposit(self, node: nodes.AccessNode, deposit: Deposit) -> None:
        self._deposits.setdefault(node, []).append(deposit)

    # ---------------------------------------------------------------- arrays

    def _access(self, state: dace.SDFGState, node: nodes.AccessNode) -> None:
        if isinstance(node.desc(self._sdfg), dace.data.View):
            self._nodes[node] = self._view(state, node)
            return
        for edge in state.in_edges(node):
            if isinstance(edge.src, nodes.AccessNode) and not edge.data.is_empty():
                self._copy(state, edge)
        for deposit in self._deposits.get(node, ()):
            whole = deposit.join is None and deposit.box.covers(self._shape(node.data))
            self._current[node.data] = deposit.value if whole else overlaid(self._b, self._value(node.data), deposit)
            self._written.add(node.data)
        self._nodes[node] = self._value(node.data)

    def _view(self, state: dace.SDFGState, node: nodes.AccessNode) -> str:
        """An array that shows elements of another one with a layout of its own."""
        place = f"state {state.label!r}: view {node.data!r}"
        sources = [e for e in state.in_edges(node) if e.dst_conn == "views"]
        if len(sources) != 1 or any(e.src_conn == "views" for e in state.out_edges(node)):
            raise Unsupported(f"{place} is written; expected views that are read")
        (edge,) = sources
        name = self._in_rows(edge.src)
        starts = [to_dim(r[0], self._sizes, place) for r in edge.data.get_src_subset(edge, state).ranges]
        offset = sum(s * t for s, t in zip(starts, self._graph.strides(name)))
        strides = [to_dim(s, self._sizes, place) for s in node.desc(self._sdfg).strides]
        return self._graph.add_view(name, node.data, self._shape(node.data), strides, dim(offset))

    def _in_rows(self, node: nodes.AccessNode) -> str:
        """What an access node holds, in the order of elements that the program sees."""
        name, source = self._nodes[node], node.desc(self._sdfg)
        in_order = isinstance(source, dace.data.View) or self._is_row_major(source)
        dense = self._graph.strides(name) == row_major(self._graph.shape(name)) or not self._graph.shape(name)
        return name if in_order and dense else self._b.copy(name)

    def _is_row_major(self, desc: dace.data.Data) -> bool:
        if isinstance(desc, dace.data.Scalar):
            return True
        shape = tuple(to_dim(n, self._sizes, "layout") for n in desc.shape)
        strides = [to_dim(s, self._sizes, "layout") for s in desc.strides]
        return all(same(s, t) or n == 1 for n, s, t in zip(shape, strides, row_major(shape)))

    def _to_box(self, subset: dace.subsets.Subset, data: str, place: str) -> ElementBox:
        if isinstance(self._sdfg.arrays[data], dace.data.Scalar):
            return ElementBox((), (), ())
        starts, extents, steps = [], [], []
        for begin, end, step in subset.ranges:
            first, last, by = (to_dim(e, self._sizes, place) for e in (begin, end, step))
            if not isinstance(by, int) or by <= 0:
                raise Unsupported(f"{place}: {data}[{subset}] has step {step}; expected a number above 0")
            span = dim(last - first + by)
            starts.append(first)
            extents.append(dim(span if by == 1 else sympy.floor(sympy.sympify(span) / by)))
            steps.append(by)
        return ElementBox(tuple(starts), tuple(extents), tuple(steps))

    def _operand(self, edge: dace.sdfg.state.MultiConnectorEdge, state: dace.SDFGState) -> str:
        """The elements that an edge from an access node carries, in as many dimensions as it has."""
        place = f"state {state.label!r}"
        box = self._to_box(edge.data.get_src_subset(edge, state) or edge.data.subset, edge.src.data, place)
        return window(self._b, self._nodes[edge.src], box)

    def _squeeze(self, name: str, rank: int) -> str:
        """Without dimensions of one element, as library nodes take what a memlet carries."""
        shape = self._graph.shape(name)
        ones = [k for k, n in enumerate(shape) if n == 1][: max(len(shape) - rank, 0)]
        return self._b.squeeze(name, ones) if ones else name

    def _store(
        self, state: dace.SDFGState, edge: dace.sdfg.state.MultiConnectorEdge, value: str, join: str | None = None
    ) -> None:
        target = edge.dst
        if not isinstance(target, nodes.AccessNode) or isinstance(target.desc(self._sdfg), dace.data.View):
            raise Unsupported(f"state {state.label!r}: {edge.src} writes {target}; expected an array")
        subset = edge.data.get_dst_subset(edge, state) or edge.data.subset
        box = self._to_box(subset, target.data, f"state {state.label!r}")
        if self._graph.shape(value) != box.extents:
            value = self._b.reshape(value, box.extents)
        if self._graph.dtype(value) != self._dtype(target.data):
            value = self._b.cast(value, self._dtype(target.data))
        self._deposit(target, Deposit(box, value, join))

    # ---------------------------------------------------------------- nodes

    def _copy(self, state: dace.SDFGState, edge: dace.sdfg.state.MultiConnectorEdge) -> None:
        join = reduction(edge.data.wcr, f"state {state.label!r}: copy to {edge.dst.data!r}")
        self._store(state, edge, self._operand(edge, state), join)

    def _library(self, state: dace.SDFGState, node: nodes.LibraryNode) -> None:
        operands = {}
        ranks = {"_x": 1, "_y": 1}
        for edge in state.in_edges(node):
            rank = ranks.get(edge.dst_conn, 2)
            operands[edge.dst_conn] = self._squeeze(self._operand(edge, state), rank)
        try:
            value = libraries.compute(self._b, node, operands)
        except Unsupported as error:
            raise Unsupported(f"state {state.label!r}: {error}") from error
        for edge in state.out_edges(node):
            self._store(state, edge, value)

    def _reduce(self, state: dace.SDFGState, node: nodes.LibraryNode) -> None:
        (source,), (target,) = state.in_edges(node), state.out_edges(node)
        kind = reduction(node.wcr, f"state {state.label!r}: {node.label}")
        assert kind is not None
        x = self._operand(source, state)
        axes = tuple(range(len(self._graph.shape(x)))) if node.axes is None else tuple(node.axes)
        value = self._b.reduce(kind, None, x, axes=axes, dtype=self._dtype(target.dst.data))
        if node.identity is not None and not _is_identity(node.identity, kind):
            identity, dtype = node.identity, self._graph.dtype(value)
            start = self._b.full(self._graph.shape(value), identity, dtype)
            self._store(state, target, start)
            self._store(state, target, value, kind)
            return
        self._store(state, target, value, kind if node.identity is None else None)

    # ---------------------------------------------------------------- results

    def _finish(self) -> ImportedSdfg:
        returned = sorted(n for n in self._written if n.startswith("__return"))
        arguments = [n for n in self._arguments() if n in self._written and n not in returned]
        outputs = [*returned, *arguments]
        if not outputs:
            raise Unsupported(f"program {self._sdfg.name!r} writes nothing")
        for data in outputs:
            self._output(self._current[data])
        self._define_sizes()
        self._graph.prune()
        inputs = self._order_inputs()
        return ImportedSdfg(self._graph, inputs, outputs)

    def _output(self, name: str) -> None:
        graph = self._graph
        if graph.is_view(name) or graph.is_given(name) or name in graph.outputs or not graph.producers(name):
            name = self._b.copy(name)
        graph.add_output(name)

    def _define_sizes(self) -> None:
        """Each size is read of an input that has it as an extent; arguments that say nothing else are inputs, too."""
        needed = {str(s): symbol for symbol, s in self._sizes.items() if str(s) in self._graph.size_names}
        for own, symbol in needed.items():
            arrays = [n for n in self._arguments() if symbol in map(str, self._sdfg.arrays[n].shape)]
            name = next((n for n in arrays if n in self._input_of), arrays[0])
            if name not in self._input_of:  # an argument that is only written says how large it is
                self._input_of[name] = self._graph.add_input(name, self._shape(name), self._dtype(name))
            axis = [str(e) for e in self._sdfg.arrays[name].shape].index(symbol)
            self._graph.symbols[own] = (self._input_of[name], axis)

    def _order_inputs(self) -> list[str]:
        """Arguments that nothing reads are no inputs; the others are in the order of the signature."""
        graph = self._graph
        sizing = {name for name, _ in graph.symbols.values()}
        for data, name in list(self._input_of.items()):
            if name not in sizing and not graph.is_read(name) and name not in graph.outputs:
                graph.inputs.remove(name)
                graph.drop(name)
                del self._input_of[data]
        inputs = [n for n in self._arguments() if n in self._input_of]
        graph.inputs = [self._input_of[n] for n in inputs]
        return inputs


def _is_identity(value: object, kind: str) -> bool:
    if kind in ("sum", "prod"):
        return bool(value == (0 if kind == "sum" else 1))
    return False
