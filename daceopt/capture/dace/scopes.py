"""Map scopes with tasklets become kernels: one for each tasklet, over all maps around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dace
import sympy
from dace import dtypes
from dace.frontend.operations import detect_reduction_type
from dace.sdfg import nodes

from daceopt.capture.dace.index_text import to_dim
from daceopt.capture.dace.tasklet_code import expressions
from daceopt.capture.dace.values import Deposit, ElementBox, overlaid
from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.symbols import param

_REDUCTIONS = {
    dtypes.ReductionType.Sum: "sum",
    dtypes.ReductionType.Product: "prod",
    dtypes.ReductionType.Max: "max",
    dtypes.ReductionType.Min: "min",
}


def reduction(wcr: object, where: str) -> str | None:
    """The name of a conflict resolution. Raises Unsupported for one that is no sum, product, maximum or minimum."""
    if wcr is None:
        return None
    join = _REDUCTIONS.get(detect_reduction_type(wcr))
    if join is None:
        raise Unsupported(f"{where}: reduction by {wcr}; expected a sum, a product, a maximum or a minimum")
    return join


@dataclass
class Loops:
    """The maps around a node, outermost first: the values of their parameters, and the extents of our own."""

    names: dict[str, Any] = field(default_factory=dict)
    extents: list[Dim] = field(default_factory=list)

    def inside(self, entry: nodes.MapEntry, sizes: Mapping[str, object], where: str) -> Loops:
        """With the parameters of one more map, which count from 0 in steps of 1 here."""
        if entry.map.schedule == dtypes.ScheduleType.Sequential:
            raise Unsupported(
                f"{where}: map {entry.map.label!r} is sequential; its iterations may depend on each other"
            )
        loops, values = Loops(dict(self.names), list(self.extents)), {**sizes, **self.names}
        for name, bounds in zip(entry.map.params, entry.map.range.ranges, strict=True):
            first, last, by = (to_dim(e, values, where) for e in bounds)
            loops._check_bounds(f"{where}: map {entry.map.label!r}", name, bounds, (first, last, by))
            loops.names[name] = first + by * param(len(loops.extents))
            loops.extents.append(dim(sympy.floor(sympy.sympify(last - first) / by) + 1))
        return loops

    def _check_bounds(self, where: str, name: str, written: Sequence[object], bounds: Sequence[object]) -> None:
        if any(set(getattr(e, "free_symbols", ())) & set(_params(len(self.extents))) for e in bounds):
            begin, end, step = written
            raise Unsupported(f"{where} is no rectangle: {name}={begin}:{end}:{step} depends on a map around it")
        if not isinstance(bounds[2], int) or bounds[2] == 0:
            raise Unsupported(f"{where} has step {written[2]}; expected a number")


def _params(count: int) -> list[sympy.Symbol]:
    return [param(k) for k in range(count)]


@dataclass
class _Local:
    """An array inside of a scope: one element, or more, for each iteration of the maps around."""

    name: str | None
    around: int
    shape: Shape
    dtype: Any


class ScopeReader:
    """Reads one top-level map scope, or a tasklet that stands alone.

    ``value``: the array that stands for what an access node outside holds; ``deposit``: takes what is written to one.
    """

    def __init__(
        self,
        b: Builder,
        state: dace.SDFGState,
        sizes: Mapping[str, object],
        value: Callable[[nodes.AccessNode], str],
        deposit: Callable[[nodes.AccessNode, Deposit], None],
    ):
        self._b, self._state, self._sizes = b, state, sizes
        self._value, self._deposit = value, deposit
        self._locals: dict[str, _Local] = {}
        self._where = f"state {state.label!r}"

    def scope(self, entry: nodes.MapEntry, around: Loops | None = None) -> None:
        """All tasklets of a map and of the maps inside of it, in their order."""
        loops = (around or Loops()).inside(entry, self._sizes, self._where)
        if any(not c.startswith("IN_") for c in entry.in_connectors):
            raise Unsupported(f"{self._where}: map {entry.map.label!r} has a range that is known when running only")
        for node in self._members(entry):
            if isinstance(node, nodes.MapEntry):
                self.scope(node, loops)
            elif isinstance(node, nodes.Tasklet):
                self.tasklet(node, loops)
            elif isinstance(node, nodes.AccessNode):
                self._check_local(node, loops)
            elif not isinstance(node, nodes.MapExit):
                raise self._misplacement(node, entry)

    def _misplacement(self, node: nodes.Node, entry: nodes.MapEntry) -> Unsupported:
        nested = isinstance(node, nodes.NestedSDFG)
        hint = ": control flow inside of a map; write choices as `a if condition else b`" if nested else ""
        what = f"{type(node).__name__} {node.label!r}"
        return Unsupported(f"{self._where}: {what} inside of map {entry.map.label!r}{hint}")

    def _members(self, entry: nodes.MapEntry) -> Iterator[nodes.Node]:
        inside = set(self._state.scope_children()[entry])
        yield from (n for n in dace.sdfg.utils.dfs_topological_sort(self._state) if n in inside)

    def _check_local(self, node: nodes.AccessNode, loops: Loops) -> None:
        desc = node.desc(self._state.parent)
        edges = [*self._state.in_edges(node), *self._state.out_edges(node)]
        others = [e for e in edges if not isinstance(e.src if e.dst is node else e.dst, nodes.CodeNode)]
        if isinstance(desc, dace.data.View) or not desc.transient or any(not e.data.is_empty() for e in others):
            raise Unsupported(
                f"{self._where}: array {node.data!r} inside of a map; expected a transient between tasklets"
            )
        if node.data not in self._locals:
            shape = self._shape(desc)
            self._locals[node.data] = _Local(None, len(loops.extents), shape, desc.dtype)

    def _shape(self, desc: dace.data.Data) -> Shape:
        if isinstance(desc, dace.data.Scalar):
            return ()
        return tuple(to_dim(n, self._sizes, self._where) for n in desc.shape)

    # ---------------------------------------------------------------- tasklets

    def tasklet(self, node: nodes.Tasklet, loops: Loops) -> None:
        """One kernel for each result of ``node``."""
        reads: dict[str, tuple[str, Any]] = {}
        for edge in self._state.in_edges(node):
            if edge.dst_conn is not None:
                reads[edge.dst_conn] = self._read(node, edge, loops)
        symbols = {c: scalar.symbol(c, self._b.graph.dtype(array)) for c, (array, _) in reads.items()}
        kinds = {s: types.compute_type(self._b.graph.dtype(reads[c][0])) for c, s in symbols.items()}
        results = expressions(node, symbols, {**self._sizes, **loops.names}, kinds)
        for edge in self._state.out_edges(node):
            if edge.src_conn is not None:
                self._write(node, edge, loops, reads, results[edge.src_conn])

    def _read(self, node: nodes.Tasklet, edge: dace.sdfg.state.MultiConnectorEdge, loops: Loops) -> tuple[str, Any]:
        source = self._state.memlet_path(edge)[0].src
        if not isinstance(source, nodes.AccessNode) or edge.data.data != source.data:
            raise Unsupported(f"{self._where}: tasklet {node.label!r} reads {edge.data} of {source}; expected an array")
        index = self._index(edge.data.subset, loops, whole=True)
        local = self._locals.get(source.data)
        if local is not None and self._state.entry_node(source) is not None:
            if local.name is None:
                raise Unsupported(f"{self._where}: tasklet {node.label!r} reads {source.data!r} before it is written")
            index = (*_params(local.around), *(index if local.shape else ()))
            return local.name, index
        name = self._value(source)
        return name, index if self._b.graph.shape(name) else ()

    def _index(self, subset: dace.subsets.Subset, loops: Loops, whole: bool = False) -> tuple[Any, ...]:
        """One element, with ``whole`` also whole dimensions as None."""
        names, index = {**self._sizes, **loops.names}, []
        single = subset.num_elements() == 1
        for begin, end, step in subset.ranges:
            if (single or begin == end) and step != 1:
                why = "DaCe's frontend loses the step of a slice that it computes with; copy the slice first"
                raise Unsupported(f"{self._where}: a tasklet takes {subset}, an element with a step: {why}")
            if single or begin == end:
                index.append(to_dim(begin, names, self._where))
            elif whole and begin == 0 and step == 1:
                index.append(None)
            else:
                raise Unsupported(f"{self._where}: a tasklet takes {subset}; expected one element, or whole dimensions")
        return tuple(index)

    def _write(
        self,
        node: nodes.Tasklet,
        edge: dace.sdfg.state.MultiConnectorEdge,
        loops: Loops,
        reads: Mapping[str, Any],
        value: object,
    ) -> None:
        target = self._state.memlet_path(edge)[-1].dst
        where = f"{self._where}: tasklet {node.label!r}"
        if not isinstance(target, nodes.AccessNode) or edge.data.data != target.data:
            raise Unsupported(f"{where} writes {edge.data} to {target}; expected an array")
        join, desc = reduction(edge.data.wcr, where), target.desc(self._state.parent)
        local = self._locals.get(target.data) if self._state.entry_node(target) is not None else None
        index = self._index(edge.data.subset, loops)
        index = () if isinstance(desc, dace.data.Scalar) else index
        index = index if local is None else (*_params(local.around), *index)
        box, places = _written_box(index, loops, join, f"{where} writes {target.data}[{edge.data.subset}]")
        array = self._b.graph.add_array(node.label, box.extents, desc.dtype)
        reduced = [join] if len(places) < len(loops.extents) else []
        out = (array, lambda *_: tuple(places.get(d, 0) for d in range(len(index))), *reduced)
        operands = {c: (array, lambda *_, at=at: at) for c, (array, at) in reads.items()}
        self._b.map(loops.extents, operands, {"out": out}, lambda params, **_: value, label=node.label)
        if local is None:
            self._deposit(target, Deposit(box, array, join))
        else:
            self._keep(local, Deposit(box, array, join), [*loops.extents[: local.around], *local.shape])

    def _keep(self, local: _Local, deposit: Deposit, shape: list[Dim]) -> None:
        if local.name is None:
            start = {"prod": 1}.get(deposit.join or "", 0)
            if deposit.join is None and deposit.box.covers(tuple(shape)):
                local.name = deposit.value
                return
            local.name = self._b.copy(self._b.full(shape, start, local.dtype))
        local.name = overlaid(self._b, local.name, deposit)


def _written_box(
    index: tuple[object, ...], loops: Loops, join: str | None, where: str
) -> tuple[ElementBox, dict[int, Any]]:
    """The elements that all iterations write, and which parameter walks which dimension."""
    places = [_walk_dimension(expr, loops, f"{where}: {expr} in dimension {d}") for d, expr in enumerate(index)]
    walking = {d: place.param for d, place in enumerate(places) if place.param is not None}
    used, every = list(walking.values()), zip(_params(len(loops.extents)), loops.extents)
    unwritten = [n for p, n in every if p not in used and n != 1]
    if len(set(used)) != len(used) or (unwritten and join is None):
        raise Unsupported(f"{where}: several iterations write one element; reduce with a conflict resolution")
    starts, extents, steps = (tuple(getattr(p, name) for p in places) for name in ("start", "extent", "step"))
    return ElementBox(starts, extents, steps), walking


@dataclass(frozen=True)
class _WrittenDimension:
    """The elements of one dimension that a loop walks; ``param`` is None where all iterations have the same one."""

    start: Dim
    extent: Dim = 1
    step: int = 1
    param: Any = None


def _walk_dimension(expr: sympy.Expr, loops: Loops, what: str) -> _WrittenDimension:
    params = _params(len(loops.extents))
    form = affine(expr, set(params))
    if not form.is_exact or len(form.terms) > 1 or any(not isinstance(f, int) or f <= 0 for _, f in form.terms):
        raise Unsupported(f"{what}; expected a parameter times a number, plus an offset")
    if not form.terms:
        return _WrittenDimension(dim(form.constant))
    ((p, factor),) = form.terms
    return _WrittenDimension(dim(form.constant), loops.extents[params.index(p)], int(factor), p)
