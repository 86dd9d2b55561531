"""Which forward arrays a backward graph reads from memory, and which it computes again, where nobody counts bytes.

The argument is bytes moved. Storing an array costs one write in the forward and one read in the backward: twice its
size. Computing it again costs twice the size of what must be stored only for that, plus one read of graph inputs that
the backward would not read otherwise (inputs are kept alive by the caller, so they cost no write). An array is computed
again when that is strictly less; then neither traffic nor memory can grow. Only element-wise and broadcast kernels are
computed again: their repetition fuses into the kernel that reads the result, so it is free of traffic itself.
Reductions, products, convolutions and operators are stored (row statistics are small anyway), and so is an array that a
library node of the backward reads, because it would have to be written there, and what a maximum, minimum or product
reduces, whose elements are compared (:mod:`daceopt.autodiff.extremes`). A chain of element-wise kernels from an
input (mish) stores nothing. Random masks are functions of the seed, eight bytes, so they are computed again.

Arrays that are named (:mod:`daceopt.autodiff.storage`) are stored or computed again as that says, whatever computes
them. Every forward kernel is repeated at most once, so the backward at most doubles the work of the forward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from dace import nodes

from daceopt.autodiff.attention_weights import attention_weights
from daceopt.autodiff.room_for_gradients import again_for_room
from daceopt.autodiff.storage import Pins, Storage, pins, why_not_again
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import hint

_MOST_LEAVES = 8  # keeps the analysis linear in the number of nodes


@dataclass
class Boundary:
    """Between the forward and the backward: the forward's nodes and arrays in the joint graph, its arrays that exist
    only there, and those whose elements gradients compare.
    """

    nodes: Collection[nodes.Node]
    arrays: Collection[str]
    local: Collection[str]
    compared: Collection[str]


def choose(graph: Graph, boundary: Boundary, policy: str, pinned: Pins) -> list[str]:
    """Names of the forward arrays to store, in the order in which they are made.

    ``graph`` is the joint graph, pruned to what the gradients need.
    """
    plan = _Plan(graph, boundary, policy, pinned)
    for node in graph.nodes():
        if node in boundary.nodes:
            plan.decide(node)
    return plan.stored_names()


def making_room(
    graph: Graph, boundary: Boundary, policy: str, pinned: Pins, stored: Collection[str]
) -> tuple[list[str], Pins]:
    """``stored`` without as many bytes as the gradients take, and what is computed again for that as well."""
    more = again_for_room(
        graph,
        stored,
        graph.outputs,
        partial(is_cheap, graph),
        lambda n: n not in pinned.store and why_fixed(graph, boundary, n) is None,
    )
    pinned = Pins(pinned.store, pinned.recompute | more)
    return (choose(graph, boundary, policy, pinned) if more else list(stored)), pinned


def settle(graph: Graph, boundary: Boundary, storage: Storage) -> Pins:
    """What ``storage`` names, and attention's weights, in the joint graph as a whole. Raises DaceoptError for names
    that do not exist."""
    elementwise = partial(is_cheap, graph)
    usual = attention_weights(graph, boundary.nodes, elementwise) if storage.policy == "recompute" else frozenset()
    usual = frozenset(n for n in usual if why_fixed(graph, boundary, n) is None)
    if not storage.store and not storage.recompute:
        return Pins(recompute=usual)
    remote = [n for n in boundary.arrays if n not in boundary.local]
    own_pins = pins(graph, storage, remote, partial(why_fixed, graph, boundary), elementwise)
    store = frozenset(n for n in own_pins.store if graph.producers(n))
    return Pins(store, own_pins.recompute | (usual - store))


def why_fixed(graph: Graph, boundary: Boundary, array: str) -> str | None:
    """Why the backward cannot compute ``array`` again, or None."""
    if not graph.producers(array):
        return f"{array} is given to the program, which neither stores nor computes it"
    if array in boundary.compared:
        return f"the elements of {array} are compared with their maximum or product, and have to be the forward's own"
    return next((why for node in graph.producers(array) if (why := why_not_again(graph, node)) is not None), None)


@dataclass
class _Plan:
    graph: Graph
    boundary: Boundary
    policy: str
    pinned: Pins
    demanded: set[str] = field(default_factory=set)  # read by gradient nodes
    dense: set[str] = field(default_factory=set)  # stored if demanded: read by a library node among them, or compared
    present: set[str] = field(default_factory=set)  # read by the backward from memory
    leaves: dict[str, frozenset[str]] = field(default_factory=dict)  # what an array is recomputed from

    def __post_init__(self) -> None:
        for node in self.graph.nodes():
            if node in self.boundary.nodes:
                continue
            roots = {r for r in _roots(self.graph, self.graph.inputs_of(node)) if r in self.boundary.arrays}
            self.demanded |= roots
            if not isinstance(node, KernelNode):
                self.dense |= roots
        self.dense |= set(self.boundary.compared)
        self.present = {r for r in self.demanded if self._must_be_read(r)}

    def _must_be_read(self, array: str) -> bool:
        maker = self.graph.producer(array)
        if maker is None:
            return True
        return not (self._is_pinned_again(maker) or self._is_local(maker) or is_cheap(self.graph, maker))

    def _is_pinned_again(self, node: nodes.Node) -> bool:
        """Is computing it again requested? A node that is computed again computes all of its results; a request to
        store one of them decides against it."""
        outputs = _roots(self.graph, self.graph.outputs_of(node))
        return not outputs.isdisjoint(self.pinned.recompute) and outputs.isdisjoint(self.pinned.store)

    def _is_local(self, node: nodes.Node) -> bool:
        return any(name in self.boundary.local for name in self.graph.outputs_of(node) if name)

    def decide(self, node: nodes.Node) -> None:
        """Give every output of ``node`` its leaves; nodes come in topological order."""
        written = [n for n in self.graph.outputs_of(node) if n is not None]
        outputs = _roots(self.graph, written)
        origin: set[str] = set()
        for root in _roots(self.graph, self.graph.inputs_of(node)):
            origin |= self.leaves.get(root, {root})
        demanded = self.demanded & outputs
        stored = outputs & self.pinned.store
        again = self._is_local(node) or self._is_pinned_again(node)
        again = again or (not stored and self._is_again_by_bytes(node, outputs, written, origin))
        for name in outputs:
            self.leaves[name] = frozenset(origin) if again else frozenset({name})
        if demanded:
            self.present |= origin if again else demanded

    def _is_again_by_bytes(self, node: nodes.Node, outputs: set[str], written: list[str], origin: set[str]) -> bool:
        cheap = is_cheap(self.graph, node) and outputs.issuperset(written)  # else a part of what others write, too
        return cheap and self._recompute(self.demanded & outputs, origin)

    def _recompute(self, wrt: set[str], origin: set[str]) -> bool:
        if not wrt:
            return len(origin) <= _MOST_LEAVES
        if self.policy == "store" or wrt & self.dense:
            return False
        extra = origin - self.present
        inputs = {n for n in extra if not self.graph.producers(n)}
        return 2 * self._bytes(extra - inputs) + self._bytes(inputs) < 2 * self._bytes(wrt)

    def _bytes(self, arrays: Iterable[str]) -> int:
        return sum(hint(self.graph.size(n)) * self.graph.dtype(n).bytes for n in arrays)

    def stored_names(self) -> list[str]:
        return [n for n in self.graph.arrays() if n in self.present and self.graph.producers(n)]


def cut(graph: Graph, stored: Iterable[str]) -> None:
    """Turn each stored array into an input of ``graph``; what only served to compute it goes."""
    for name in stored:
        for maker in graph.producers(name):
            graph.remove(maker)
        graph.replace_parts_by_views(name)
        graph.inputs.append(name)


def _roots(graph: Graph, names: Iterable[str | None]) -> set[str]:
    return {graph.root(n)[0] for n in names if n is not None}


def is_cheap(graph: Graph, node: nodes.Node) -> bool:
    """One element-wise or broadcast stage: no reduction, no run-time index."""
    if not isinstance(node, KernelNode):
        return False
    kernel = node.kernel
    if len(kernel.stages) != 1:
        return False
    return all(w.wcr is None for w in kernel.writes()) and all(None not in r.index for r in kernel.reads())
