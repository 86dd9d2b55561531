"""How much goes through the caches between two uses of an array, in the order in which the nodes of a graph run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from daceopt.cost.movement import picked_bytes
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import Dim

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

Number = Callable[[Dim], float]
Part = tuple[float, float]


@dataclass(frozen=True)
class ReuseDistances:
    """``parts``: of each node (bytes, reach) of the buffers that it reads and writes.

    A read reaches back to the node that touched the buffer last: what was moved since, and the buffer itself; to the
    run before, past all that the program touches, where none has. What is written and kept has been touched in the run
    before, too; scratch memory is what nodes shortly before have left.
    """

    parts: Mapping[Node, tuple[Part, ...]]

    @classmethod
    def of(cls, graph: Graph, number: Number, moved: Mapping[Node, float]) -> ReuseDistances:
        """``moved``: bytes that each node moves."""
        nodes = graph.nodes()
        buffers = {graph.root(n)[0] for node in nodes for n in (*graph.inputs_of(node), *graph.outputs_of(node)) if n}
        size = {b: number(graph.size(b)) * graph.dtype(b).bytes for b in buffers}
        results, whole = {graph.root(n)[0] for n in (*graph.outputs, *graph.saved)}, sum(size.values())
        last: dict[str, float] = {}
        parts: dict[Node, tuple[Part, ...]] = {}
        now = 0.0
        for node in nodes:
            picked = picked_bytes(graph, node.kernel) if isinstance(node, KernelNode) else {}
            most = {**size, **{graph.root(a)[0]: number(n) for a, n in picked.items()}}
            read = _bytes_by_buffer(graph, graph.inputs_of(node), most, number)
            written = _bytes_by_buffer(graph, graph.outputs_of(node), size, number)
            reads = [(n, n + now - last[b] if b in last else whole) for b, n in read.items()]
            writes = [(n, whole if b in results else moved[node]) for b, n in written.items()]
            parts[node] = (*reads, *writes)
            now += moved[node]
            last |= dict.fromkeys((*read, *written), now)
        return cls(parts)


def _bytes_by_buffer(
    graph: Graph, names: Iterable[str | None], most: Mapping[str, float], number: Number
) -> dict[str, float]:
    """Buffer -> bytes of it that arrays show, ``most`` at most; what a view repeats counts once."""
    amounts: dict[str, float] = {}
    for name in names:
        if name is not None:
            root = graph.root(name)[0]
            shown = prod(number(n) for n, step in zip(graph.shape(name), graph.strides(name)) if step != 0)
            amounts[root] = min(most[root], amounts.get(root, 0.0) + shown * graph.dtype(name).bytes)
    return amounts
