"""Map scopes that a transformation of DaCe has rewritten become kernels again, with the loops that it chose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dace
import sympy
from dace.sdfg import nodes

from daceopt.capture.dace.index_text import to_dim
from daceopt.capture.dace.scopes import reduction
from daceopt.errors import Unsupported
from daceopt.ir.edits.schedule_edits import reorder, split
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import SymbolicTasklet
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Parameter, param, size
from daceopt.ir.schedule.schedule import Tree, default, without_accumulators


@dataclass(frozen=True)
class _Tiles:
    """A loop over tiles: where its range begins and ends, and the tiles' size."""

    begin: Any
    end: Any
    size: int


class _Nest:
    """The loops around one tasklet: ``domain`` has what is walked, ``order`` the loops as they are, outermost first;
    tiles are called after what they are tiles of."""

    def __init__(self, label: str, sizes: Mapping[str, object]):
        self._label, self._names = label, dict(sizes)
        self._tiles: dict[str, _Tiles] = {}
        self.domain: dict[Parameter, Dim] = {}
        self.values: dict[str, Any] = {}  # name of a loop -> what it counts, in the domain's parameters
        self.sizes: dict[Parameter, int] = {}  # parameter -> size of its tiles
        self._order: list[str] = []
        self._owner: dict[str, Parameter] = {}

    def enter(self, name: str, bounds: Sequence[object]) -> None:
        """One more loop, inside of the others."""
        begin, end, step = (to_dim(e, self._names, self._label) for e in bounds)
        around = {str(s) for e in (begin, end) for s in getattr(e, "free_symbols", ())} & set(self._order)
        self._order.append(name)
        if around:
            self._enter_tile(name, begin, end, step, around)
        elif step == 1:
            self._walk(name, begin, end)
        elif isinstance(step, int) and step > 1:
            self._tiles[name] = _Tiles(begin, end, step)
        else:
            raise self._refusal(f"step {step}")
        self._names[name] = Parameter(name)

    def _walk(self, name: str, begin: Any, end: Any) -> Parameter:
        own = param(len(self.domain))
        self.domain[own] = dim(end - begin + 1)
        self.values[name], self._owner[name] = begin + own, own
        return own

    def _enter_tile(self, name: str, begin: object, end: object, step: object, around: set[str]) -> None:
        (tile,) = around if len(around) == 1 else ("",)
        bounds = self._tiles.get(tile)
        if bounds is None or tile in self._owner or step != 1 or dim(begin - Parameter(tile)) != 0:
            raise self._refusal(f"{name} from {begin} to {end}")
        last = dim(Parameter(tile) + bounds.size - 1)
        ends = {dim(e) for e in (end.args if isinstance(end, sympy.Min) else (end,))}
        whole = dim(bounds.end - bounds.begin + 1)
        if ends != {last, dim(bounds.end)} and not (
            ends == {last} and isinstance(whole, int) and not whole % bounds.size
        ):
            raise self._refusal(f"{name} from {begin} to {end}")
        own = self._walk(name, bounds.begin, bounds.end)
        self.sizes[own], self._owner[tile] = bounds.size, own

    def _refusal(self, what: str) -> Unsupported:
        return Unsupported(f"{self._label}: a loop with {what}; expected loops over ranges and over tiles of ranges")

    def order(self) -> list[str]:
        """The loops as a schedule calls them. Raises Unsupported for tiles that nothing walks."""
        if unwalked := [name for name in self._tiles if name not in self._owner]:
            raise self._refusal(f"steps, {unwalked[0]}, and no loop inside of them")
        return [f"{self._owner[n]}_block" if n in self._tiles else str(self._owner[n]) for n in self._order]


@dataclass(frozen=True)
class ReadKernel:
    """``kernel``, and its loops where they are others than the default ones."""

    kernel: Kernel
    tree: Tree | None


def read_scope(graph: Graph, state: dace.SDFGState, top: nodes.Node, inside: Collection[str] = ()) -> ReadKernel:
    """The map scope of ``top``, or a tasklet outside of all maps, of a state that was ``graph``'s. ``inside``: arrays
    of the graph that are locals there now.

    Raises Unsupported, with the map or the tasklet, for what is no kernel.
    """
    return _Reader(graph, state, top, inside).read()


class _Reader:
    def __init__(self, graph: Graph, state: dace.SDFGState, top: nodes.Node, inside: Collection[str]):
        self._graph, self._state, self._top, self._inside = graph, state, top, inside
        self._label = top.map.label if isinstance(top, nodes.MapEntry) else top.label
        self._around = state.scope_dict()
        self._sizes = {name: size(name) for name in graph.size_names}
        self._locals: dict[str, Any] = {}

    def read(self) -> ReadKernel:
        members = list(self._members())
        tasklets = [n for n in members if isinstance(n, nodes.Tasklet)]
        for node in members:
            self._check(node)
        nests = [self._nest(t) for t in tasklets]
        kernel = self._kernel(tasklets, nests)
        if len(tasklets) > 1 or self._locals:
            if any(nest.sizes for nest in nests):
                raise Unsupported(f"{self._label}: tiles of several statements; expected one statement")
            return ReadKernel(kernel, None)
        return ReadKernel(kernel, _schedule(kernel, nests[0]))

    def _members(self) -> Iterator[nodes.Node]:
        if isinstance(self._top, nodes.Tasklet):
            yield self._top
            return
        for node in dace.sdfg.utils.dfs_topological_sort(self._state):
            if any(entry is self._top for entry in self._entries(node)):
                yield node

    def _entries(self, node: nodes.Node) -> list[nodes.MapEntry]:
        """The maps around ``node``, outermost first."""
        entries = []
        entry = self._around[node]
        while entry is not None:
            entries.append(entry)
            entry = self._around[entry]
        return entries[::-1]

    def _check(self, node: nodes.Node) -> None:
        if isinstance(node, nodes.Tasklet) and not isinstance(node, SymbolicTasklet):
            raise Unsupported(f"{self._label}: tasklet {node.label!r} was written anew by DaCe; its code is text only")
        if isinstance(node, nodes.AccessNode):
            desc = node.desc(self._state.parent)
            if not desc.transient:
                raise Unsupported(f"{self._label}: array {node.data!r} inside of a map")
            self._locals[node.data] = (types.compute_type(desc.dtype), tuple(self._size(n) for n in desc.shape))
        elif not isinstance(node, (nodes.Tasklet, nodes.MapEntry, nodes.MapExit)):
            raise Unsupported(
                f"{self._label}: {type(node).__name__} {node} inside of a map; expected maps and tasklets"
            )

    def _size(self, extent: object) -> Dim:
        return to_dim(extent, self._sizes, self._label)

    def _nest(self, tasklet: nodes.Tasklet) -> _Nest:
        nest = _Nest(self._label, self._sizes)
        for entry in self._entries(tasklet):
            for name, bounds in zip(entry.map.params, entry.map.range.ranges, strict=True):
                nest.enter(name, bounds)
        nest.order()
        return nest

    def _kernel(self, tasklets: Sequence[nodes.Tasklet], nests: Sequence[_Nest]) -> Kernel:
        """Loops that are around several tasklets are one loop; others are their own."""
        extents: dict[Any, Dim] = {}
        stages = []
        shared = len(self._top.map.params) if isinstance(self._top, nodes.MapEntry) and len(tasklets) > 1 else 0
        for tasklet, nest in zip(tasklets, nests, strict=True):
            new = {p: p if k < shared else param(len(extents) + k) for k, p in enumerate(nest.domain) if k < shared}
            for k, p in enumerate(nest.domain):
                own = p if k < shared else param(max(len(extents), shared))
                new[p] = own
                extents.setdefault(own, nest.domain[p])
            values = {name: sympy.sympify(v).xreplace(new) for name, v in nest.values.items()}
            stages.append(self._stage(tasklet, values, tuple(new.values())))
        outer = tuple(param(k) for k in range(shared))
        return Kernel(self._label, extents, stages, outer, dict(self._locals))

    def _stage(self, tasklet: nodes.Tasklet, values: Mapping[str, object], params: tuple[sympy.Symbol, ...]) -> Stage:
        names, whole = {**self._sizes, **values}, getattr(tasklet, "whole_dimensions", {})
        reads = {
            e.dst_conn: self._access(e.data, names, whole.get(e.dst_conn, set()), tasklet)
            for e in self._state.in_edges(tasklet)
            if e.dst_conn
        }
        writes = {
            e.src_conn: self._access(e.data, names, set(), tasklet)
            for e in self._state.out_edges(tasklet)
            if e.src_conn
        }
        loops = {s: values[str(s)] for a in tasklet.assignments for s in a.expr.free_symbols if str(s) in values}
        return Stage(params, reads, writes, tuple(a.subs(loops) for a in tasklet.assignments))

    def _access(
        self, memlet: dace.Memlet, names: Mapping[str, object], whole: set[int], tasklet: nodes.Tasklet
    ) -> Access:
        wcr = None if memlet.wcr is None else reduction(memlet.wcr, f"{self._label}: {tasklet.label}")
        is_outside = self._graph.has(memlet.data) and memlet.data not in self._inside
        if not is_outside and memlet.data not in self._locals:
            desc = self._state.parent.arrays[memlet.data]  # what passes from tasklet to tasklet
            self._locals[memlet.data] = (types.compute_type(desc.dtype), tuple(self._size(n) for n in desc.shape))
        if self._graph.has(memlet.data) and not self._graph.shape(memlet.data):
            return Access(memlet.data, (), wcr)
        index: list[Any] = []
        for axis, (begin, end, step) in enumerate(memlet.subset.ranges):
            if axis not in whole and (begin != end or step != 1):
                raise Unsupported(f"{self._label}: {tasklet.label!r} takes {memlet}; expected one element")
            index.append(None if axis in whole else to_dim(begin, names, self._label))
        return Access(memlet.data, tuple(index), wcr)


def _schedule(kernel: Kernel, nest: _Nest) -> Tree | None:
    """The loops in the order of the maps; None where that is the default."""
    tree = without_accumulators(default(kernel))
    for p, tiles in nest.sizes.items():
        tree = split(tree, p, tiles)
    order = [name for name in nest.order() if name.endswith("_block") or kernel.extents[Parameter(name)] != 1]
    if len(order) > 1:
        tree = reorder(tree, order)
    return None if tree == without_accumulators(default(kernel)) else tree
