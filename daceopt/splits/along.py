"""Splitting information: along which axes the arrays of a graph can be cut into instances that nodes compute apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import sympy

import daceopt.ops.families.loop_nests  # noqa: F401  (library nodes as loops)
from daceopt.ir.data.provenance import label_of
from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.fusion.relations import Flow, Flows, flows, kernel_flows, nest_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData, Pool, PoolBackward
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.affine import quotient, same
from daceopt.ir.scalar.dims import Dim, hint
from daceopt.splits.rules import CannotSplit, division

Place = tuple[str, int]  # an array and one of its dimensions
Accesses = Sequence[tuple[str, Sequence["Dim | None"]]]  # arrays, and at which index each


@dataclass(frozen=True)
class SplitAxis:
    """One axis of a program, such as its batch: ``dims`` has the dimension of each array that goes along it.

    There are ``items`` along it; an array may have several elements for each (the rows of all sequences of a batch).
    """

    dims: Mapping[str, int]
    items: Dim

    def each(self, graph: Graph, name: str) -> Dim:
        """Elements of ``name`` along the axis for one item."""
        extent = quotient(graph.shape(name)[self.dims[name]], self.items)
        assert extent is not None
        return extent


@dataclass(frozen=True)
class NodeCut:
    """How a node is cut: which of the arrays that it reads are cut with it; the others are read whole. ``param``: the
    loop of a kernel that goes along the axis. ``summed``: results that are sums over the items; an instance gives the
    sum over its own (``splits/sums.py``)."""

    sliced: frozenset[str]
    param: sympy.Symbol | None = None
    summed: frozenset[str] = frozenset()


def split_axes(graph: Graph) -> list[SplitAxis]:
    """The axes of ``graph``, the one along which most is written first.

    Dimensions belong to one axis where nodes, views and parts map them to each other one to one (GraphTurbo, Zhao et
    al., OSDI 2023, Algorithm 1, with flows instead of a rule for each operator), or where a node sums over them
    together, as gradients of weights do over the batch.
    """
    classes = _Classes()
    for name in graph.arrays():
        for place, same_place in _same_memory(graph, name):
            classes.join(place, same_place)
    for node in graph.nodes():
        for (read, result), flow in ways(graph, node).items():
            for d, relation in enumerate(flow.dims):
                if relation.kind == "bijective" and relation.axis is not None:
                    classes.join((read, d), (result, relation.axis))
    for node in graph.nodes():
        for place, other in _sum_together(graph, node):
            classes.join_where_apart(place, other)
    written = {n for node in graph.nodes() for n in graph.outputs_of(node) if n is not None}
    axes = [axis for places in classes.all() if (axis := _axis(graph, places)) is not None]
    return sorted(axes, key=lambda axis: -sum(hint(graph.size(n)) for n in axis.dims if n in written))


class _Classes:
    """Sets of places that grow together."""

    def __init__(self) -> None:
        self._class_of: dict[Place, list[Place]] = {}

    def _of(self, place: Place) -> list[Place]:
        return self._class_of.setdefault(place, [place])

    def join(self, one: Place, other: Place) -> None:
        small, large = sorted((self._of(one), self._of(other)), key=len)
        if small is not large:
            large += small
            self._class_of |= dict.fromkeys(small, large)

    def join_where_apart(self, one: Place, other: Place) -> None:
        """Not where an array would have two of its dimensions in one set."""
        small, large = sorted((self._of(one), self._of(other)), key=len)
        if not {name for name, _ in small} & {name for name, _ in large}:
            self.join(one, other)

    def all(self) -> list[list[Place]]:
        return list({id(places): places for places in self._class_of.values()}.values())


def _same_memory(graph: Graph, name: str) -> Iterator[tuple[Place, Place]]:
    """Dimensions of a view or part that walk over the same memory as one of what they show."""
    if graph.is_part(name):
        whole = graph.part(name).whole
        for d, (n, w) in enumerate(zip(graph.shape(name), graph.shape(whole), strict=True)):
            if same(n, w):
                yield (name, d), (whole, d)
    if not graph.is_view(name):
        return
    source = graph.view_source(name)
    for d, (n, s) in enumerate(zip(graph.shape(name), graph.strides(name), strict=True)):
        for e, (m, t) in enumerate(zip(graph.shape(source), graph.strides(source), strict=True)):
            if s != 0 and t != 0 and not same(n, 1) and not same(m, 1) and same(n * s, m * t):
                yield (name, d), (source, e)


def _sum_together(graph: Graph, node: Node) -> Iterator[tuple[Place, Place]]:
    """Dimensions of what ``node`` reads along which one loop walks that no result goes along."""
    for extents, reads, writes in _nests(graph, node):
        for p, extent in extents.items():
            if any(p in getattr(e, "free_symbols", ()) for _, index in writes for e in index):
                continue
            places = [(name, d) for name, index in reads for d, e in enumerate(index) if e == p]
            yield from pairwise(place for place in places if same(graph.shape(place[0])[place[1]], extent))


def _nests(graph: Graph, node: Node) -> Iterator[tuple[Mapping[sympy.Symbol, Dim], Accesses, Accesses]]:
    """The loops of ``node``, statement by statement: their extents, what is read at which indices, what is written."""
    if not isinstance(node, KernelNode):
        if (nest := nest_of(graph, node)) is not None:
            yield nest.extents, nest.reads, nest.writes
        return
    kernel = node.kernel
    for stage in kernel.stages:
        read = [(c, a) for c, a in stage.reads.items() if a.array not in kernel.locals]
        reads = [(a.array, settled_access(stage, c).index) for c, a in read]
        extents = {p: kernel.extents[p] for p in stage.params}
        yield extents, reads, [(a.array, a.index) for a in stage.writes.values()]


def _axis(graph: Graph, places: list[Place]) -> SplitAxis | None:
    """The axis of a class; arrays with two dimensions in it, or not outermost in memory, are none of it."""
    dims: dict[str, int] = {}
    twice = set()
    for name, d in places:
        if name in dims:
            twice.add(name)
        dims[name] = d
    dims = {n: d for n, d in dims.items() if n not in twice and _is_outermost(graph, n, d)}
    extents = sorted({graph.shape(n)[d] for n, d in dims.items()}, key=hint)
    items = next((e for e in extents if all(quotient(other, e) is not None for other in extents)), None)
    if items is None or same(items, 1):
        return None
    return SplitAxis(dims, items)


def _is_outermost(graph: Graph, name: str, d: int) -> bool:
    """Do the elements at one index along the dimension are before all of those at the next one?"""
    shape, strides = graph.shape(name), graph.strides(name)
    rest = [(n, s) for k, (n, s) in enumerate(zip(shape, strides, strict=True)) if k != d and not same(n, 1)]
    sizes = graph.sizes
    if same(strides[d], 0) or not all(map(sizes.is_natural, (strides[d], *(s for _, s in rest)))):
        return False
    return sizes.is_natural(sympy.sympify(strides[d] - 1 - sum((n - 1) * s for n, s in rest)))


# -------------------------------------------------------------------- nodes


def ways(graph: Graph, node: Node) -> Flows:
    """The flows through ``node``; of a kernel also through its loads at places that follow from the loops."""
    if not isinstance(node, KernelNode):
        return flows(graph, node)
    kernel = node.kernel
    settled = [replace(s, reads={c: settled_access(s, c) for c in s.reads}) for s in kernel.stages]
    if all(a.reads == b.reads for a, b in zip(settled, kernel.stages, strict=True)):
        return flows(graph, node)
    return kernel_flows(graph, expand_locals(replace(kernel, stages=settled)))


def settled_access(stage: Stage, connector: str) -> Access:
    """A read with an index along those dimensions of which all loads take one element that follows from the loops."""
    access = stage.reads[connector]
    if None not in access.index:
        return access
    loads = {e for a in stage.assignments for e in a.expr.atoms(scalar.load) if str(e.args[0]) == connector}
    places = [tuple(load.args[1:]) for load in loads]
    is_open = [d for d, e in enumerate(access.index) if e is None]
    index = list(access.index)
    for k, d in enumerate(is_open):
        indices = {place[k] for place in places}
        if len(indices) == 1 and (place := next(iter(indices))) in stage.params:
            index[d] = place
    return replace(access, index=tuple(index))


def cut_of(graph: Graph, node: Node, axis: SplitAxis) -> NodeCut:
    """How ``node`` is cut along ``axis``. Raises CannotSplit with the reason why it is not."""
    written = [n for n in graph.outputs_of(node) if n is not None]
    for name in written:
        if name not in axis.dims:
            raise CannotSplit(f"{label_of(node)} writes {name}, which has no elements for each of {axis.items} items")
    axes = division(graph, node, axis.dims[written[0]]).axes
    if any(axes.get(n) != axis.dims[n] for n in written):
        raise CannotSplit(f"{label_of(node)} is split along other axes of what it writes")
    if isinstance(node, (Convolution, ConvolutionBackwardData, Pool, PoolBackward)) and axis.dims[written[0]] != 0:
        raise CannotSplit(f"{label_of(node)}: instances of channels or rows are other windows than the whole")
    along = _loop(graph, node, axis) if isinstance(node, KernelNode) else None
    known_ways = ways(graph, node)
    sliced = {
        name for name in graph.inputs_of(node) if name is not None and _is_sliced(graph, node, name, axis, known_ways)
    }
    if along is not None:
        _check_whole_reads(graph, node, along, sliced)
    return NodeCut(frozenset(sliced), along)


def _is_sliced(
    graph: Graph, node: Node, name: str, axis: SplitAxis, known_ways: Mapping[tuple[str, str], Flow]
) -> bool:
    """Is ``name`` cut together with what is written (True), or read as a whole by each instance?"""
    ways = {w: flow for (r, w), flow in known_ways.items() if r == name}
    own = axis.dims.get(name)
    if own is not None and ways and all(_is_cut(flow, own, axis.dims[w]) for w, flow in ways.items()):
        return True
    for w, flow in ways.items():
        if any(r.axis == axis.dims[w] for r in flow.dims):
            raise CannotSplit(f"{label_of(node)} reads other elements of {name} along the axis than it writes")
        if not isinstance(node, KernelNode) and any(r.kind == "opaque" for r in flow.dims):
            raise CannotSplit(f"{label_of(node)}: which elements of {name} it reads is not known")
    return False


def _is_cut(flow: Flow, own: int, axis: int) -> bool:
    others = (r for d, r in enumerate(flow.dims) if d != own)
    return flow.dims[own].kind == "bijective" and flow.dims[own].axis == axis and all(r.axis != axis for r in others)


def _loop(graph: Graph, node: KernelNode, axis: SplitAxis) -> sympy.Symbol:
    """The parameter of a kernel that walks along the axis."""
    kernel = node.kernel
    if kernel.is_tiled or kernel.schedule is not None:
        raise CannotSplit(f"kernel {kernel.label} has loops of its own already")
    access = kernel.writes()[0]
    return access.index[axis.dims[access.array]]


def _check_whole_reads(graph: Graph, node: KernelNode, along: sympy.Symbol, sliced: set[str]) -> None:
    kernel = node.kernel
    for access in (a for stage in kernel.stages for a in stage.reads.values()):
        if access.array not in sliced and access.array not in kernel.locals and along in access.params():
            raise CannotSplit(f"kernel {kernel.label} reads {access.array} in more than one way along the axis")
