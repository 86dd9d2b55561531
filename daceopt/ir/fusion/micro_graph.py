"""Micro-graphs: the types by which nodes are aggregated, from dataflow alone, and how one feeds another.

The types are those of APOLLO (Zhao et al., MLSys 2022, section 3.3, definitions 1 to 4). The paper calls reshapes,
products and convolutions opaque and names the latter two in its rules; here dataflow tells them from what is opaque
indeed, and windows and parts (``stencil``) as well. So an operator that nobody has seen has its type, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from daceopt.errors import Unsupported
from daceopt.ir.fusion.fusion import expand_locals
from daceopt.ir.fusion.relations import Flow, Flows, flows, statement_flows, view_flow
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.affine import same
from daceopt.ir.scalar.dims import Shape

TYPES = ("element-wise", "broadcast", "reduction", "transpose", "matmul", "conv", "stencil", "opaque")
COMPUTE_BOUND = ("matmul", "conv")

# ways of an array into another one, from the one that says most to the one that says least
WAYS = ("bijective", "permuted", "injective", "surjective", "neighbourhood", "opaque")


@dataclass(frozen=True)
class Link:
    """How a node reads an array that another node writes.

    ``view``: the way of the array into what is read, through views. ``way``: into what the reader writes. Each is one
    of ``WAYS``, the last of them where there are several.
    """

    view: str
    way: str

    def beside(self, other: Link) -> Link:
        """Where the node reads it both ways."""
        return Link(_last((self.view, other.view)), _last((self.way, other.way)))


def way_of(flow: Flow, shape: Shape) -> str:
    """Which of ``WAYS`` a flow of an array of ``shape`` is; its dimensions of one element do not count."""
    dims = [r for r, n in zip(flow.dims, shape, strict=True) if not same(n, 1)]
    kinds = {r.kind for r in dims}
    axes = [r.axis for r in dims if r.axis is not None]
    if "opaque" in kinds:
        return "opaque"
    if kinds & {"neighbourhood", "injective"} or len(set(axes)) < len(axes):  # a window, an index of many, a diagonal
        return "neighbourhood"
    if "surjective" in kinds:
        return "surjective"
    if Flow(tuple(dims), flow.out).broadcast:
        return "injective"
    return "bijective" if axes == sorted(axes) else "permuted"


def type_of(graph: Graph, node: Node) -> str:
    """The type of a node, one of ``TYPES``: of a kernel of several statements that of the one that asks for most."""
    if isinstance(node, KernelNode):
        try:
            return type_of_kernel(graph, expand_locals(node.kernel))
        except Unsupported:
            return "opaque"
    return _of_statement(graph, flows(graph, node), {})


def type_of_kernel(graph: Graph, kernel: Kernel) -> str:
    """The type of a kernel that need not be in the graph, with locals in the form of ``expand_locals``."""
    local = {name: shape for name, (_, shape) in kernel.locals.items()}
    return _most(_of_statement(graph, ways, local) for ways in statement_flows(graph, kernel))


_RANK = ("element-wise", "broadcast", "transpose", "reduction", "matmul", "conv", "stencil", "opaque")


def _most(types: Iterable[str]) -> str:
    return max(types, key=_RANK.index, default="element-wise")


def _of_statement(graph: Graph, statement: Flows, local: Mapping[str, Shape]) -> str:
    results: dict[str, dict[str, Flow]] = {}
    shapes = dict(local)
    for (read, written), flow in statement.items():
        origin, before = (read, None) if read in local else _origin(graph, read)
        whole = flow if before is None else before.then(flow)
        flows_to = results.setdefault(written, {})
        flows_to[origin] = flows_to[origin].beside(whole) if origin in flows_to else whole
        shapes[origin] = shapes[origin] if origin in shapes else graph.shape(origin)
    return _most(_of_result(ways, shapes) for ways in results.values())


def _of_result(ways: Mapping[str, Flow], shapes: Mapping[str, Shape]) -> str:
    """The type of a statement of one result."""
    kinds = {origin: way_of(flow, shapes[origin]) for origin, flow in ways.items()}
    all_kinds = set(kinds.values())
    if "opaque" in all_kinds:
        return "opaque"
    reduced = [f for f in ways.values() if any(r.kind == "surjective" for r in f.dims)]
    if "neighbourhood" in all_kinds:
        windows = [ways[o] for o, kind in kinds.items() if kind == "neighbourhood"]
        return "conv" if any(_meets(w, r) for w in windows for r in reduced if r is not w) else "stencil"
    if "surjective" in all_kinds:
        reused = all(flow.broadcast for flow in reduced)  # else some operand has an element for each iteration
        return (
            "matmul" if reused and any(_meets(a, b) and _meets(b, a) for a in reduced for b in reduced) else "reduction"
        )
    if "permuted" in all_kinds:
        return "transpose"
    return "broadcast" if "injective" in all_kinds else "element-wise"


def _meets(one: Flow, other: Flow) -> bool:
    """Is each element of ``other`` used again along an axis of the result that ``one`` goes along?"""
    return any(r.axis in other.broadcast for r in one.dims if r.axis is not None)


def _origin(graph: Graph, read: str) -> tuple[str, Flow | None]:
    """What ``read`` is a transposition or a broadcast of, as far as that goes, and how it comes from there."""
    name, way = read, None
    while graph.is_view(name):
        source, step = graph.view_source(name), view_flow(graph, name)
        if way_of(step, graph.shape(source)) not in ("bijective", "permuted", "injective"):
            break
        name, way = source, step if way is None else step.then(way)
    return name, way


def links(graph: Graph, node: Node) -> dict[str, Link]:
    """Array that a node writes -> how ``node`` reads it, for all that it reads of other nodes."""
    links: dict[str, Link] = {}
    for (read, _), flow in flows(graph, node).items():
        for array in graph.sources(read):
            link = _link(graph, array, read, flow)
            links[array] = links[array].beside(link) if array in links else link
    return links


def _link(graph: Graph, array: str, read: str, flow: Flow) -> Link:
    whole: Flow | None = None
    name = read
    while name != array and graph.is_view(name):
        step = view_flow(graph, name)
        whole = step if whole is None else step.then(whole)
        name = graph.view_source(name)
    if name != array:  # a part of what is read
        return Link("neighbourhood", "neighbourhood")
    shape = graph.shape(array)
    view = "bijective" if whole is None else way_of(whole, shape)
    return Link(view, way_of(flow if whole is None else whole.then(flow), shape))


def _last(ways: Iterable[str]) -> str:
    return max(ways, key=WAYS.index)
