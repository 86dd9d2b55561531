"""In which ways a node can be cut into pieces, and what each piece needs of what the node reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import daceopt.ops  # noqa: F401  (registers which loop nests library nodes are)
from daceopt.ir.fusion.relations import Flow, Relation, flows, view_flow
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import Shape
from daceopt.splits import CannotSplit, Division, division

Span = tuple[int, int]
"""The first element along an axis, and the one behind the last."""


@dataclass(frozen=True)
class Reach:
    """Index o along the axis that is cut reads at most ``width`` indices from ``stride * o + offset`` on, along
    ``axis`` of an array."""

    axis: int
    stride: int = 1
    offset: int = 0
    width: int = 1

    @property
    def halo(self) -> int:
        """How many indices neighbouring pieces both read."""
        return max(self.width - self.stride, 0)

    def reach(self, span: Span, size: int) -> Span:
        """The elements, of ``size``, that the piece ``span`` reads."""
        start, end = span
        first = self.stride * start + self.offset
        return max(first, 0), min(self.stride * (end - 1) + self.offset + self.width, size)

    def beside(self, other: Reach) -> Reach | None:
        """Where the node reads the array in both ways; None where that is no link."""
        if (self.axis, self.stride) != (other.axis, other.stride):
            return None
        first = min(self.offset, other.offset)
        last = max(self.offset + self.width, other.offset + other.width)
        return Reach(self.axis, self.stride, first, last - first)


@dataclass(frozen=True)
class Cut:
    """One way to cut a node: along ``axis`` of the first array that it writes, of ``extent`` elements.

    ``links``: array read (written by one node, or given) -> what a piece needs of it. ``whole``: arrays of which every
    piece reads all.
    """

    axis: int
    extent: int
    division: Division
    links: Mapping[str, Reach]
    whole: tuple[str, ...]


@dataclass(frozen=True)
class Cuts:
    """A node, all ways to cut it, outermost axis first, and why there is none.

    ``streamed``: what goes along the outermost axis of the result: activations, and no weights. ``sampling``: how many
    elements it writes for one that it reads; less than 1 where it down-samples. ``overwrites``: what it may write its
    result over, element by element, where nothing reads it later.
    """

    node: Node
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    ways: tuple[Cut, ...]
    reason: str
    streamed: frozenset[str] = frozenset()
    sampling: Fraction = Fraction(1)
    overwrites: tuple[str, ...] = ()


def cuts_of(graph: Graph, node: Node) -> Cuts:
    """All ways to cut ``node``."""
    writes = tuple(n for n in graph.outputs_of(node) if n is not None)
    reads = tuple(dict.fromkeys(s for n in graph.inputs_of(node) if n is not None for s in graph.sources(n)))
    reason = _open(graph, (*writes, *reads))
    if reason or not writes or not graph.shape(writes[0]):
        return Cuts(node, writes, reads, (), reason or f"{_first(writes)} has no axis to split")
    flows, cuts, reasons = _Flows(graph, node), [], []
    for axis, extent in enumerate(graph.shape(writes[0])):
        if extent == 1:
            continue
        try:
            cuts.append(flows.cut(division(graph, node, axis), axis))
        except CannotSplit as error:
            reasons.append(str(error))
    missing = reasons[0] if reasons else f"{writes[0]} has one element along each axis"
    streamed, sampling = flows.streamed_reads(writes[0]), flows.sampling(writes[0])
    return Cuts(node, writes, reads, tuple(cuts), missing, streamed, sampling, tuple(_overwrites(graph, node)))


def cut_along(graph: Graph, node: Node, axes: Mapping[str, int]) -> Cut:
    """The way that cuts each array that ``node`` writes along the axis that ``axes`` says. Raises CannotSplit."""
    first = next(n for n in graph.outputs_of(node) if n is not None)
    divided = division(graph, node, axes[first])
    if any(axes[name] != axis for name, axis in divided.axes.items()):
        raise CannotSplit(f"{node}: expected {dict(axes)}, it is split along {dict(divided.axes)}")
    return _Flows(graph, node).cut(divided, axes[first])


def _overwrites(graph: Graph, node: Node) -> Iterator[str]:
    """As the memory plan lets kernels do it: each iteration reads the element that it writes."""
    kernel = node.kernel if isinstance(node, KernelNode) else None
    if kernel is None or len(kernel.stages) != 1 or len(kernel.stages[0].writes) != 1:
        return
    (write,) = kernel.stages[0].writes.values()
    if write.wcr:
        return
    for read in kernel.stages[0].reads.values():
        same = graph.shape(read.array) == graph.shape(write.array) and read.index == write.index
        if same and graph.dtype(read.array) == graph.dtype(write.array) and graph.sources(read.array) == [read.array]:
            yield read.array


def _first(names: tuple[str, ...]) -> str:
    return names[0] if names else "the node"


def _open(graph: Graph, names: tuple[str, ...]) -> str:
    for name in names:
        unknown = [str(n) for n in graph.shape(name) if not isinstance(n, int)]
        if unknown:
            return f"{name} has {unknown[0]} elements along an axis, which is known when running"
        if 0 in graph.shape(name):
            return f"{name} is empty"
    return ""


class _Flows:
    """How what a node reads goes into what it writes, through views down to arrays that one node writes."""

    def __init__(self, graph: Graph, node: Node):
        self._graph = graph
        self._known: dict[str, list[tuple[str, Flow]]] = {}  # array written -> (array read, flow)
        self._accesses: dict[str, list[tuple[str, Shape, Flow]]] = {}  # the same with the extents that are read
        for (read, written), flow in flows(graph, node).items():
            origins = list(self._origins(read, flow))
            self._known.setdefault(written, []).extend(origins)
            accesses = ((name, *self._smaller(read, flow, name, way)) for name, way in origins)
            self._accesses.setdefault(written, []).extend(accesses)

    def _smaller(self, read: str, flow: Flow, origin: str, way: Flow) -> tuple[Shape, Flow]:
        """What is read of an array: all of it, or what a view shows of it, whichever is less."""
        shown, whole = self._graph.shape(read), self._graph.shape(origin)
        is_less = self._graph.sizes.is_natural(prod(whole) - prod(shown))
        return (shown, flow) if is_less else (whole, way)

    def _origins(self, read: str, flow: Flow) -> Iterator[tuple[str, Flow]]:
        graph, name = self._graph, read
        while graph.is_view(name):
            flow = view_flow(graph, name).then(flow)
            name = graph.view_source(name)
        for source in graph.sources(read):
            yield source, flow if source == name else self._of_part(source, name, flow)

    def _of_part(self, source: str, whole: str, flow: Flow) -> Flow:
        """The part's own dimensions: what it has not all of is read as a whole."""
        dims = list(flow.dims)
        name = source
        while name != whole:
            part = self._graph.part(name)
            for k, (n, m) in enumerate(zip(self._graph.shape(name), self._graph.shape(part.whole))):
                dims[k] = dims[k] if n == m else Relation("opaque")
            name = part.whole
        return Flow(tuple(dims), flow.out)

    def cut(self, divided: Division, axis: int) -> Cut:
        """The way to cut the node as ``divided`` says."""
        links: dict[str, Reach | None] = {}
        for written, own in divided.axes.items():
            for read, flow in self._known.get(written, ()):
                link = _link(flow, own)
                before = links.get(read, link)
                links[read] = None if link is None or before is None else link.beside(before)
        first = next(iter(divided.axes))
        extent = self._graph.shape(first)[divided.axes[first]]
        assert isinstance(extent, int)
        present = {name: link for name, link in links.items() if link is not None}
        whole = tuple(name for name, link in links.items() if link is None)
        return Cut(axis, extent, divided, present, whole)

    def streamed_reads(self, written: str) -> frozenset[str]:
        """What is read along the outermost axis of the array ``written``, also where that has one element."""
        ways = self._known.get(written, ())
        return frozenset(read for read, flow in ways if any(r.axis == 0 for r in flow.dims))

    def sampling(self, written: str) -> Fraction:
        """Elements of the array ``written`` for each that is read of what is computed.

        Where the result has axes along which only given operands go (the channels of a convolution), these do not
        count, nor what is reduced for them: more or fewer channels are no resampling; nor is a product of two computed
        operands. Decided on extents and flows, so that any operator that resamples is found.
        """
        accesses = self._accesses.get(written, [])
        computed = [access for access in accesses if self._graph.producers(access[0])]
        names = {name for name, _, _ in computed}
        others = [flow for name, _, flow in accesses if name not in names]
        fresh = {r.axis for flow in others for r in flow.dims} - {r.axis for _, _, flow in computed for r in flow.dims}
        if not computed or any(_is_multiplied(flow, fresh) for _, _, flow in computed):
            return Fraction(1)
        size = prod(int(n) for k, n in enumerate(self._graph.shape(written)) if k not in fresh)
        own = dict.fromkeys(names, 0)
        for name, shape, flow in computed:
            own[name] += prod(int(n) for n, r in zip(shape, flow.dims) if not fresh or r.kind != "surjective")
        total = sum(own.values())
        if size in own.values() or not total:  # nothing is read of empty views
            return Fraction(1)
        return Fraction(size, total if total <= size else max(own.values()))


def _is_multiplied(flow: Flow, fresh: set[int | None]) -> bool:
    """Does an operand go into a sum of products, of which the others have axes of their own?"""
    return any(r.kind == "surjective" for r in flow.dims) and any(axis not in fresh for axis in flow.broadcast)


def _link(flow: Flow, axis: int) -> Reach | None:
    """What a piece along ``axis`` needs; None where that is all of the array."""
    relations = [(k, r) for k, r in enumerate(flow.dims) if r.axis == axis]
    if len(relations) != 1:
        return None
    dimension, relation = relations[0]
    if relation.kind == "bijective":
        return Reach(dimension)
    stride, offset, width = relation.stride, relation.offset, relation.width
    if not (isinstance(stride, int) and isinstance(offset, int) and isinstance(width, int)) or stride < 1:
        return None
    return Reach(dimension, stride, offset, width)
