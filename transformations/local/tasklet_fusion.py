"""Fuse chains of element-wise kernels into one symbolic tasklet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.access.iteration import canonical
from daceopt.ir.fusion.fusion import collapse, expand_locals, merge
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class TaskletFusion(Transformation):
    """Put a point-wise producer into its only consumer, over the same iteration space.

    before:  for i: t[i] = f(x[i])    for i: y[i] = g(t[i], x[i])
    after:   for i: { t = f(x[i]); y[i] = g(t, x[i]) }    (one tasklet of two assignments)

    Before differentiation this decides what is recomputed: the intermediate is no array any more, so the backward pass
    differentiates the whole tasklet from its inputs (Rausch et al., DaCeML, section 5.3).
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    max_assignments: int = 64

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        chains = _Chains(graph, self.max_assignments)
        for node in reversed(graph.kernels()):
            chains.absorb(node)
        for kernel, members in chains.result():
            yield Site(graph, tuple(members), {"kernel": kernel})

    def apply(self, site: Site) -> None:
        site.graph.take_out(reversed(site.nodes))
        site.graph.add_kernel(canonical(site["kernel"]))


class _Chains:
    def __init__(self, graph: Graph, limit: int):
        self.graph, self.limit = graph, limit
        self.kernels: dict[Any, Kernel] = {}
        self.members: dict[Any, list[Any]] = {}
        self.home: dict[Any, Any] = {}  # absorbed producer -> the consumer that holds it

    def result(self) -> list[tuple[Kernel, list[Any]]]:
        return [(self.kernels[n], m) for n, m in self.members.items() if len(m) > 1 and n not in self.home]

    def absorb(self, node: Any) -> None:
        """Pull into ``node`` every producer that nothing else reads, and theirs in turn."""
        kernel = self._kernel(node)
        if node in self.home or kernel is None:
            return
        self.members.setdefault(node, [node])
        waiting = [a.array for a in kernel.reads()]
        while waiting:
            producer = self._lone_producer(waiting.pop(), node)
            fused = self._fuse(producer, node) if producer is not None else None
            if fused is None:
                continue
            self.kernels[node] = fused
            self.home[producer] = node
            self.members[node].append(producer)
            waiting = [a.array for a in fused.reads()]

    def _kernel(self, node: Any) -> Kernel | None:
        if node not in self.kernels:
            kernel = node.kernel
            if len(kernel.stages) != 1 or kernel.is_tiled:
                return None
            self.kernels[node] = kernel
        return self.kernels[node]

    def _lone_producer(self, array: str, node: Any) -> Any:
        """The kernel that writes ``array`` alone and whose result only ``node`` (with what it holds) reads."""
        producer = self.graph.producer(array)
        if not isinstance(producer, KernelNode) or producer in self.home or producer is node:
            return None
        for written in self.graph.outputs_of(producer):
            aliases = self.graph.aliases(written)  # type: ignore[arg-type]
            readers = {self.home.get(c, c) for a in aliases for c in self.graph.consumers(a)}
            if readers != {node} or self.graph.is_kept(written):  # type: ignore[arg-type]
                return None
        return producer

    def _fuse(self, producer: Any, node: Any) -> Kernel | None:
        first, second = self._kernel(producer), self.kernels[node]
        if first is None or len(first.stages[0].params) != len(second.stages[0].params) or _reduces(first):
            return None
        if len(first.stages[0].assignments) + len(second.stages[0].assignments) > self.limit:
            return None
        merged = merge(self.graph, expand_locals(first), expand_locals(second), lambda array: False)
        return collapse(merged) if isinstance(merged, Kernel) else None


def _reduces(kernel: Kernel) -> bool:
    return any(a.wcr for a in kernel.stages[0].writes.values())
