"""How the dimensions of what a node reads go into what it writes, from the indices alone.

Rules for fusing, splitting and batching that speak of these classes hold for operators that nobody has seen yet.

The classes are those by which APOLLO (Zhao et al., MLSys 2022, Table 1) aggregates operators, one for each dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.view_index import view_index
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.affine import Affine, affine, same
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.symbols import param
from daceopt.ir.scalar.types import DType

KINDS = ("bijective", "injective", "surjective", "neighbourhood", "opaque")
Index = Sequence["Dim | None"]


@dataclass(frozen=True)
class Relation:
    """What the elements of an output have to do with one dimension of an input.

    ``bijective``: index o of the output's ``axis`` reads index o. ``neighbourhood``: it reads at most the ``width``
    indices from ``stride * o + offset`` on, some of which may lie outside (a stencil, a window, a part).
    ``surjective``: each element reads the whole dimension (a reduction). ``injective``: all read the same index of it
    (a broadcast). ``opaque``: nothing is known, as of a gather.
    """

    kind: str
    axis: int | None = None
    stride: Dim = 1
    offset: Dim = 0
    width: Dim = 1


_OPAQUE, _ALL, _ONE = Relation("opaque"), Relation("surjective"), Relation("injective")


@dataclass(frozen=True)
class Flow:
    """The relation of each dimension of an input to an output of shape ``out``."""

    dims: tuple[Relation, ...]
    out: Shape

    @property
    def broadcast(self) -> tuple[int, ...]:
        """The output's axes that no dimension of the input goes along."""
        reached = {r.axis for r in self.dims}
        return tuple(e for e, n in enumerate(self.out) if e not in reached and not same(n, 1))

    @property
    def kind(self) -> str:
        """The weakest of its classes; bijective where each element goes to one element, and each one comes from one."""
        kinds = {r.kind for r in self.dims}
        axes = [r.axis for r in self.dims if r.axis is not None]
        if len(set(axes)) < len(axes):  # a diagonal
            kinds.add("neighbourhood")
        weakest = next((k for k in ("opaque", "surjective", "neighbourhood", "injective") if k in kinds), "bijective")
        return "injective" if weakest == "bijective" and self.broadcast else weakest

    @property
    def is_equal(self) -> bool:
        """Does each element go to the one at its own index, and nothing else to any?"""
        return self.kind == "bijective" and all(r.axis == k for k, r in enumerate(self.dims))

    def then(self, other: Flow) -> Flow:
        """The flow through both, where what this one writes is what ``other`` reads."""
        return Flow(tuple(_compose(r, other.dims) for r in self.dims), other.out)

    def beside(self, other: Flow) -> Flow:
        """The flow where an input takes both ways."""
        return Flow(tuple(_join(a, b) for a, b in zip(self.dims, other.dims, strict=True)), self.out)


def _compose(first: Relation, second: Sequence[Relation]) -> Relation:
    if first.axis is None:
        return first
    then = second[first.axis]
    if then.kind == "injective" and first.kind != "bijective":
        return _OPAQUE
    if then.axis is None or first.kind == "bijective":
        return then
    if then.kind == "bijective":
        return replace(first, axis=then.axis)
    stride, offset = dim(first.stride * then.stride), dim(first.stride * then.offset + first.offset)
    reach = dim(first.stride * (then.width - 1))
    if not isinstance(reach, int):
        return _OPAQUE
    return Relation("neighbourhood", then.axis, stride, dim(offset + min(reach, 0)), dim(abs(reach) + first.width))


def _join(a: Relation, b: Relation) -> Relation:
    if a == b:
        return a
    if "opaque" in (a.kind, b.kind):
        return _OPAQUE
    if "surjective" in (a.kind, b.kind):
        return _ALL
    bounds = (a.offset, b.offset, a.width, b.width)
    if a.axis is None or a.axis != b.axis or a.stride != b.stride or not all(isinstance(n, int) for n in bounds):
        return _OPAQUE
    start = min(a.offset, b.offset)
    end = max(a.offset + a.width, b.offset + b.width)
    return Relation("neighbourhood", a.axis, a.stride, start, dim(end - start))


# ---------------------------------------------------------------- one statement


@dataclass(frozen=True)
class LoopNest:
    """A node as one loop nest: the extent of each parameter, and of each operand the array and its index."""

    extents: Mapping[sympy.Symbol, Dim]
    reads: Sequence[tuple[str, Index]]
    writes: Sequence[tuple[str, Index]]


def flow(extents: Mapping[sympy.Symbol, Dim], read: Index, shape: Shape, write: Index, out: Shape) -> Flow:
    """The flow of an access ``read`` of an array of ``shape`` into one that ``write`` fills, of shape ``out``."""
    return _flow(tuple(extents.items()), tuple(read), tuple(shape), tuple(write), tuple(out))


@lru_cache(1 << 14)  # each pair of kernels that a step looks at asks for all accesses of both again
def _flow(loops: tuple[tuple[sympy.Symbol, Dim], ...], read: Index, shape: Shape, write: Index, out: Shape) -> Flow:
    extents = dict(loops)
    writes = [None if e is None else affine(e, extents) for e in write]
    return Flow(
        tuple(
            _OPAQUE if e is None else _relation(affine(e, extents), k, extents, writes, shape, out)
            for k, e in enumerate(read)
        ),
        out,
    )


def _relation(
    form: Affine, k: int, extents: Mapping[sympy.Symbol, Dim], writes: Sequence[Affine | None], shape: Shape, out: Shape
) -> Relation:
    unclear = any(w is None or not w.is_exact for w in writes)
    if not form.is_exact:
        return _OPAQUE
    if not form.terms:
        axis = k + len(out) - len(shape)
        unit = same(shape[k], 1) and axis >= 0 and same(out[axis], 1)
        return Relation("bijective", axis) if unit else _ONE
    homes = {p: e for e, w in enumerate(writes) if w is not None for p, _ in w.terms}
    axes = [p for p, _ in form.terms if p in homes]
    if len(axes) != 1:
        return _ALL if not axes and not unclear else _OPAQUE
    home = writes[homes[axes[0]]]
    assert home is not None
    return _along(form, axes[0], home, homes[axes[0]], extents, (shape[k], out[homes[axes[0]]]))


def _along(
    form: Affine, p: sympy.Symbol, home: Affine, axis: int, extents: Mapping[sympy.Symbol, Dim], sizes: tuple[Dim, Dim]
) -> Relation:
    """``o = ±p + ...`` is solved for ``p`` and put into the index read, ``c*p + ...``; other loops make the width."""
    sign = home.factors[p]
    if sign not in (1, -1) or not home.is_exact:
        return _OPAQUE
    stride = dim(form.factors[p] * sign)
    others = {
        q: dim(form.factors.get(q, 0) - stride * home.factors.get(q, 0)) for q in {**form.factors, **home.factors}
    }
    moving = [(c, extents[q]) for q, c in others.items() if q != p and c != 0]
    if any(not isinstance(c, int) for c, _ in moving):
        return _OPAQUE
    start = sum(c * (n - 1) for c, n in moving if c < 0)
    offset = dim(form.constant - stride * home.constant + start)
    width = dim(1 + sum(abs(c) * (n - 1) for c, n in moving))
    whole = same(sizes[0], sizes[1]) and same(sizes[0], extents[p])
    if stride == 1 and offset == 0 and width == 1 and whole:
        return Relation("bijective", axis)
    return Relation("neighbourhood", axis, stride, offset, width)


# ---------------------------------------------------------------- nodes

Describe = Callable[[Graph, Node], LoopNest]
NESTS: dict[str, Describe] = {}  # library node class name -> the loop nest that it stands for
Flows = dict[tuple[str, str], Flow]


def describes(class_name: str) -> Callable[[Describe], Describe]:
    """Register the loop nest that a library node (or a subclass of it) stands for: ``function(graph, node)``."""

    def register(function: Describe) -> Describe:
        NESTS[class_name] = function
        return function

    return register


def nest_of(graph: Graph, node: Node) -> LoopNest | None:
    """The loop nest that a library node stands for; None where nobody has described it."""
    describe = next((NESTS[c.__name__] for c in type(node).__mro__ if c.__name__ in NESTS), None)
    return None if describe is None else describe(graph, node)


def flows(graph: Graph, node: Node) -> Flows:
    """(array read, array written) -> how the one goes into the other, for all that depend on each other.

    Opaque for nodes that nobody has described, and for what is read at run-time indices.
    """
    if isinstance(node, KernelNode):
        return _of_kernel(graph, node)
    nest = nest_of(graph, node)
    if nest is None:
        return _unknown(graph, node)
    result: Flows = {}
    for (a, read), (w, write) in product(nest.reads, nest.writes):
        way = flow(nest.extents, read, graph.shape(a), write, graph.shape(w))
        result[a, w] = result[a, w].beside(way) if (a, w) in result else way
    return result


def _unknown(graph: Graph, node: Node) -> Flows:
    reads, writes = ([n for n in names if n is not None] for names in (graph.inputs_of(node), graph.outputs_of(node)))
    return {(a, w): Flow((_OPAQUE,) * len(graph.shape(a)), graph.shape(w)) for a in reads for w in writes}


def _of_kernel(graph: Graph, node: KernelNode) -> Flows:
    try:
        kernel = expand_locals(node.kernel)
    except Unsupported:
        return _unknown(graph, node)
    return kernel_flows(graph, kernel)


def kernel_flows(graph: Graph, kernel: Kernel) -> Flows:
    """:func:`flows` of a kernel that need not be in the graph; its locals are in the form of
    :func:`daceopt.ir.fusion.fusion.expand_locals`."""
    result: Flows = {}
    for steps in statement_flows(graph, kernel):
        for (read, written), step in steps.items():
            for source, way in _ways(result, read, kernel.locals, step):
                before = result.get((source, written))
                result[source, written] = way if before is None else before.beside(way)
    return {(a, w): f for (a, w), f in result.items() if w not in kernel.locals}


def statement_flows(graph: Graph, kernel: Kernel) -> Iterator[Flows]:
    """The flows of each statement by itself, in which locals are arrays like others."""
    shapes = {name: shape for name, (_, shape) in kernel.locals.items()}
    shapes |= {a.array: graph.shape(a.array) for a in (*kernel.reads(), *kernel.writes())}
    for stage in kernel.stages:
        result: Flows = {}
        for write, read in product(stage.writes.values(), stage.reads.values()):
            way = flow(kernel.extents, read.index, shapes[read.array], write.index, shapes[write.array])
            key = read.array, write.array
            result[key] = result[key].beside(way) if key in result else way
        yield result


def _ways(earlier: Flows, array: str, local: Mapping[str, tuple[DType, Shape]], step: Flow) -> list[tuple[str, Flow]]:
    """What is read by way of a local, or the array itself."""
    if array not in local:
        return [(array, step)]
    return [(source, before.then(step)) for (source, w), before in earlier.items() if w == array]


def view_flow(graph: Graph, view: str) -> Flow:
    """How the source of a view goes into it."""
    source, shape = graph.view_source(view), graph.shape(view)
    own, strides = graph.shape(source), graph.strides(source)
    index = view_index(shape, graph.strides(view), graph.view_offset(view), own, strides, graph.sizes)
    if index is None:
        return Flow((_OPAQUE,) * len(own), shape)
    params = [param(k) for k in range(len(shape))]
    write = [0 if same(n, 1) else p for p, n in zip(params, shape)]
    return flow(dict(zip(params, shape)), index, own, write, shape)
