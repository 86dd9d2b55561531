"""Equal instances of a sub-graph as one loop: its body is the sub-graph on a part of an axis, and is compiled once."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from daceopt.ir.control.region import Repeat
from daceopt.ir.control.region_builder import LoopBuilder
from daceopt.ir.data.arrays import SEED
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.splits.along import NodeCut, SplitAxis
from daceopt.splits.rules import CannotSplit


def why_not_together(graph: Graph, members: Iterable[Node], cuts: Mapping[Node, NodeCut]) -> str | None:
    """Why ``members`` cannot be the body of one loop: something that they write is read as a whole, or is part of what
    others write, too."""
    inside = set(members)
    written = _writes(graph, inside)
    for node in inside:
        for name in (n for n in graph.inputs_of(node) if n is not None):
            sources = set(graph.sources(name))
            if not sources & written:
                continue
            if name not in cuts[node].sliced:
                return f"{label_of(node)} reads all of {name}, which the same loop writes"
            if not sources <= written:
                return f"{label_of(node)} reads {name}, of which only parts are written in the same loop"
    return None


def roll(
    graph: Graph, members: Sequence[Node], cuts: Mapping[Node, NodeCut], axis: SplitAxis, instance: int, label: str = ""
) -> list[Repeat]:
    """Replace ``members``, a convex set of nodes that are cut along ``axis``, by a loop over ``instance`` items each.

    before:  y = f(x); z = g(y)                         (over n items)
    after:   for k < n // 8: z[8*k : 8*k + 8] = g(f(x[8*k : 8*k + 8]))
             for k < 1:      z[n - n % 8 :] = g(f(x[n - n % 8 :]))        (where n is not divisible)

    What is cut is read through views and written into place; what stays inside is as large as one instance. A sum over
    the items is carried from instance to instance, each of which adds the sum over its own, in order. Returns the
    loops. Raises CannotSplit, and changes nothing, as :func:`why_not_together` says.
    """
    if not isinstance(axis.items, int) and not axis.items.is_Symbol:
        raise CannotSplit(f"instances of {instance} of {axis.items} items: expected a number of items, or a size")
    if reason := why_not_together(graph, members, cuts):
        raise CannotSplit(reason)
    return _Rolling(graph, members, cuts, axis, label or label_of(members[0])).run(instance)


@dataclass(frozen=True)
class _Run:
    """``trips`` instances of ``size`` items each, ``total`` together, from item ``start`` on."""

    start: Dim
    size: Dim
    trips: Dim
    total: Dim


def _runs(items: Dim, instance: int) -> list[_Run]:
    if isinstance(items, int):
        count, rest = divmod(items, instance)
        return [_Run(0, instance, count, instance * count), *([_Run(items - rest, rest, 1, rest)] if rest else [])]
    count = sympy.floor(items / instance)
    rest = dim(items - instance * count)
    whole = dim(instance * count)
    return [_Run(0, instance, count, whole), _Run(whole, rest, sympy.Min(rest, 1), rest)]


def _writes(graph: Graph, members: Iterable[Node]) -> set[str]:
    return {n for node in members for n in graph.outputs_of(node) if n is not None}


class _Rolling:
    def __init__(
        self, graph: Graph, members: Sequence[Node], cuts: Mapping[Node, NodeCut], axis: SplitAxis, label: str
    ):
        self._graph, self._axis, self._label = graph, axis, label
        inside = set(members)
        self._members = [n for n in graph.nodes() if n in inside]
        self._cuts = cuts
        self._summed = dict.fromkeys(n for m in self._members for n in graph.outputs_of(m) if n in cuts[m].summed)
        written = _writes(graph, self._members) - self._summed.keys()
        self._inner = written | self._wholes(written)
        # as they are before the writers of parts are gone
        self._parts = {n: graph.part(n) for n in self._inner if graph.is_part(n)}
        reads = {n for node in self._members for n in graph.inputs_of(node) if n is not None}
        self._bases = {name: graph.written_array(name) for name in reads}
        self._results = self._find_results(inside)
        self._nodes = [self._description(n) for n in self._members]
        self._origins = [graph.origins_of(n) for n in self._members]

    def _wholes(self, written: set[str]) -> set[str]:
        """Arrays of which all parts are written inside."""
        wholes: set[str] = set()
        for name in written:
            while self._graph.is_part(name):
                name = self._graph.part(name).whole
                if set(self._graph.sources(name)) <= written:
                    wholes.add(name)
        return wholes

    def _find_results(self, inside: set[Node]) -> list[str]:
        """What others read, or what is kept: the largest arrays, of which the others are parts."""
        graph = self._graph

        def is_seen(name: str) -> bool:
            shown = [name]
            for alias in shown:
                shown += graph.views_of(alias)
            is_kept = any(alias in graph.outputs or alias in graph.saved for alias in shown)
            return is_kept or any(c not in inside for alias in shown for c in graph.consumers(alias))

        results = {name for name in self._inner if self._is_outside(name) or is_seen(name)}
        return [name for name in graph.arrays() if name in results and not self._is_in(name, results)]

    def _is_outside(self, name: str) -> bool:
        """Is it a part of what others write, too?"""
        return self._graph.is_part(name) and self._graph.part(name).whole not in self._inner

    def _is_in(self, name: str, others: set[str]) -> bool:
        while self._graph.is_part(name):
            name = self._graph.part(name).whole
            if name in others:
                return True
        return False

    def _description(self, node: Node) -> Any:
        """A member by itself: a kernel, or a library node with its operands."""
        if isinstance(node, KernelNode):
            return node.kernel
        return copy.deepcopy(node), self._graph.reads(node), self._graph.writes(node)

    # ---------------------------------------------------------------- the graph around

    def run(self, instance: int) -> list[Repeat]:
        graph = self._graph
        runs = _runs(self._axis.items, instance)
        for node in self._members:
            graph.remove(node)
        for name in self._results:
            graph.replace_parts_by_views(name)  # the writers of its parts are gone
        targets = [{n: self._target(n, run, len(runs)) for n in self._results} for run in runs]
        sums = {name: self._zeros(name) for name in self._summed}
        loops = []
        for run, target in zip(runs, targets, strict=True):
            finals = {name: self._final(name, run is runs[-1]) for name in self._summed}
            loops.append(self._loop(run, target, sums, finals))
            sums = finals
        for name, total in sums.items():
            if total != name:
                self._b.copy(total, out=name)
        return loops

    @property
    def _b(self) -> Builder:
        return Builder(self._graph, self._label)

    def _zeros(self, name: str) -> str:
        graph = self._graph
        with graph.label_nodes(origins=graph.origins.get(name, ())):
            start = graph.add_array("zeros", graph.shape(name), graph.dtype(name))
            return self._b.full(graph.shape(name), 0, graph.dtype(name), out=start)

    def _final(self, name: str, is_last: bool) -> str:
        """Where a loop leaves the sum ``name``: values that are carried are in rows."""
        graph = self._graph
        if is_last and graph.is_contiguous(name):
            return name
        return graph.add_array(graph.source.names.get(name, name), graph.shape(name), graph.dtype(name))

    def _target(self, name: str, run: _Run, count: int) -> str:
        """Where the loop of ``run`` writes the result ``name``: a part of it where there is another loop."""
        graph, axis = self._graph, self._axis
        if count == 1:
            return name
        d, each = axis.dims[name], axis.each(graph, name)
        starts: list[Dim] = [0] * len(graph.shape(name))
        shape = list(graph.shape(name))
        starts[d], shape[d] = dim(each * run.start), dim(sympy.expand(each * run.total))
        return graph.add_part(name, graph.source.names.get(name, name), starts, shape)

    # ---------------------------------------------------------------- the body

    def _loop(
        self, run: _Run, targets: Mapping[str, str], sums: Mapping[str, str], finals: Mapping[str, str]
    ) -> Repeat:
        """``sums``: what has been summed before the loop, and ``finals``: where it is left, by result."""
        body = _Body(self, run)
        before = {name: body.loop.carry(sums[name]) for name in self._summed}
        for described, cut, origins in zip(self._nodes, self._in_order_cuts(), self._origins, strict=True):
            body.add(described, cut, origins)
        stacked = [(body.inner(n), targets[n], self._axis.dims[n], False) for n in self._results]
        totals = [body.total(name, start) for name, start in before.items()]
        ends = [finals[name] for name in self._summed]
        return body.loop.finish(totals, ends, stacked, trips=run.trips, blocks=True)

    def _in_order_cuts(self) -> list[NodeCut]:
        return [self._cuts[n] for n in self._members]


class _Body:
    """The members on one instance, in the graph of the loop's body."""

    def __init__(self, rolling: _Rolling, run: _Run):
        self._graph, self._axis, self._run = rolling._graph, rolling._axis, run
        self._inside, self._parts, self._bases = rolling._inner, rolling._parts, rolling._bases
        self.loop = LoopBuilder(self._graph, rolling._label)
        self._made: dict[str, str] = {}
        self._slices: dict[str, str] = {}

    def add(self, described: Any, cut: NodeCut, origins: Any) -> None:
        with self.loop.graph.label_nodes("", origins):
            if isinstance(described, Kernel):
                self._kernel(described, cut)
                return
            node, reads, writes = described
            twin = copy.deepcopy(node)
            operands = {c: self._read(n, cut) for c, n in reads.items()}
            self.loop.graph.add_node(twin, operands, {c: self.inner(n) for c, n in writes.items()})

    # ---------------------------------------------------------------- arrays

    def inner(self, name: str) -> str:
        """The array of the body for one that members write, or for a whole that consists of such."""
        if name not in self._made:
            self._made[name] = self._declare(name)
        return self._made[name]

    def _declare(self, name: str) -> str:
        graph, body = self._graph, self.loop.graph
        hint, shape = graph.source.names.get(name, name), self._extents(name)
        part = self._parts.get(name)
        if part is not None and part.whole in self._inside:
            return body.add_part(self.inner(part.whole), hint, part.starts, shape)
        return body.add_array(hint, shape, graph.dtype(name), self._strides(name))

    def _strides(self, name: str) -> tuple[Dim, ...] | None:
        return self._graph.strides(name) or None

    def total(self, name: str, before: str) -> str:
        """The sum ``name`` over the items so far: what it was ``before``, and that of the instance."""
        with self.loop.graph.label_nodes(origins=self._graph.origins.get(name, ())):
            return str(self.loop.b.elementwise(lambda total, own: total + own, before, self.inner(name)))

    def _extents(self, name: str) -> list[Dim]:
        shape = list(self._graph.shape(name))
        if name not in self._axis.dims:  # each instance has one of its own
            return shape
        shape[self._axis.dims[name]] = dim(self._axis.each(self._graph, name) * self._run.size)
        return shape

    def _read(self, name: str, cut: NodeCut) -> str:
        """What stands for ``name`` where a member reads it."""
        if name == SEED:
            return self.loop.graph.seed()
        if name not in cut.sliced:
            return self.loop.capture(name)
        base = self._bases[name]
        if name == base and base in self._inside:
            return self.inner(name)
        if name not in self._slices:
            self._slices[name] = self._view(name, base)
        return self._slices[name]

    def _view(self, name: str, base: str) -> str:
        """The instance's elements of a view of what members write, or of an array around."""
        graph, body = self._graph, self.loop.graph
        hint = graph.source.names.get(name, name)
        if base in self._inside:
            offset = dim(graph.root(name)[1] - graph.root(base)[1])
            return body.add_view(self.inner(base), hint, self._extents(name), graph.strides(name), offset)
        first = self._first(self._axis.each(graph, name))
        offset = dim(first * graph.strides(name)[self._axis.dims[name]])
        return body.add_view(self.loop.capture(name), hint, self._extents(name), graph.strides(name), offset)

    def _first(self, each: Dim) -> Dim:
        """The first element of the instance, where an item has ``each`` of them."""
        return dim(sympy.expand(each * (self._run.start + self._run.size * self.loop.counter)))

    # ---------------------------------------------------------------- kernels

    def _kernel(self, kernel: Kernel, cut: NodeCut) -> None:
        p = cut.param
        assert p is not None
        each = dim(sympy.sympify(kernel.extents[p]) / self._axis.items)
        extent = dim(each * self._run.size)
        shift = {p: p + self._first(each)}
        written = {a.array: a.index for s in kernel.stages for a in s.writes.values() if a.array in kernel.locals}
        local = {
            name: (dtype, tuple(extent if e == p else n for e, n in zip(written[name], shape, strict=True)))
            for name, (dtype, shape) in kernel.locals.items()
        }
        stages = [self._stage(kernel, s, shift, cut) for s in kernel.stages]
        rolled = Kernel(kernel.label, {**kernel.extents, p: extent}, stages, kernel.outer, local)
        self.loop.graph.add_kernel(rolled.rename_locals_apart(self.loop.graph))

    def _stage(self, kernel: Kernel, stage: Stage, shift: dict[sympy.Symbol, sympy.Expr], cut: NodeCut) -> Stage:
        """Accesses reach the instance's arrays; scalar code that names the element means that of the whole."""

        def there(access: Access, write: bool) -> Access:
            if access.array in kernel.locals:
                return access
            return replace(access, array=self.inner(access.array) if write else self._read(access.array, cut))

        moved, back = stage.subs(shift, stage.params).assignments, {place: p for p, place in shift.items()}
        return replace(
            stage,
            reads={c: there(a, False) for c, a in stage.reads.items()},
            writes={c: there(a, True) for c, a in stage.writes.items()},
            assignments=tuple(replace(a, expr=self._reach(a.expr, stage, back, cut)) for a in moved),
        )

    def _reach(self, expr: sympy.Expr, stage: Stage, back: Mapping[sympy.Expr, sympy.Expr], cut: NodeCut) -> sympy.Expr:
        """``expr`` where loads of what is cut name elements of the instance again."""
        if not expr.args or not expr.has(scalar.load):
            return expr
        args = [self._reach(a, stage, back, cut) for a in expr.args]
        access = stage.reads.get(str(args[0])) if isinstance(expr, scalar.load) else None
        if access is not None and access.array in cut.sliced:
            d = self._axis.dims[access.array]
            if access.index[d] is None:
                k = 1 + access.index[:d].count(None)
                args[k] = back[args[k]]
        return expr.func(*args)
