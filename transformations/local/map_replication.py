"""Give each reader of a point-wise result a kernel of its own that computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from daceopt.cost.work import operations
from daceopt.errors import DaceoptError
from daceopt.ir.fusion.inlining import why_not_inlined
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class MapReplication(Transformation):
    """Replicate the kernel that leads to an array which several nodes read.

    before:  t = f(x)    y = g(t)    z = h(t)
    after:   t = f(x)    u = f(x)    y = g(t)    z = h(u)

    Each result then has one reader, so that ``tasklet-fusion`` and ``map-fusion`` can put f into both. Before
    differentiation that is the knob between storing and computing again (Rausch et al., DaCeML, section 5.3).
    ``array``: the names of such arrays in the graph, with wildcards; ``max_readers`` and ``max_operations`` (of one
    element) bound what is computed again; reductions are not.
    """

    level: ClassVar[str] = "local"
    array: str = "*"
    max_readers: int = 4
    max_operations: int = 64

    def __post_init__(self) -> None:
        if self.max_readers < 2:
            raise DaceoptError(f"max_readers={self.max_readers}: expected 2 or more")

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        written = [n for n in graph.outputs_of(node) if n is not None]
        if not isinstance(node, KernelNode) or not any(fnmatchcase(n, self.array) for n in written):
            return
        readers = list(dict.fromkeys(r for n in written for r in graph.all_consumers(n)))
        if len(readers) < 2:
            return
        reason = self._why_not(graph, node, written, readers)
        yield Site(graph, (node, *readers[1:])) if reason is None else NearMiss(node, reason)

    def _why_not(self, graph: Graph, node: Node, written: list[str], readers: list[Node]) -> str | None:
        if len(written) > 1:
            return f"it writes {len(written)} arrays; expected one"
        if graph.is_kept(written[0]) or graph.is_part(written[0]) or graph.parts_of(written[0]):
            return f"{written[0]} outlives the program, or is a part of another array"
        if len(readers) > self.max_readers:
            return f"{len(readers)} nodes read {written[0]}, more than max_readers={self.max_readers}"
        kernel = node.kernel
        cost = sum(operations(s.assignments) for s in kernel.stages)
        if cost > self.max_operations:
            return f"an element takes {cost} operations, more than max_operations={self.max_operations}"
        return why_not_inlined(graph, kernel)

    def apply(self, site: Site) -> None:
        graph, (node, *readers) = site.graph, site.nodes
        kernel = node.kernel
        (old,) = (n for n in graph.outputs_of(node) if n is not None)
        with graph.label_nodes(origins=graph.origins_of(node)):
            for reader in readers:
                new = graph.add_array(old, graph.shape(old), graph.dtype(old), graph.strides(old))
                graph.add_kernel(kernel.over({old: new}))
                _redirect(graph, old, new, reader)


def _redirect(graph: Graph, old: str, new: str, reader: Node) -> None:
    """``reader`` reads ``new`` in the place of ``old``, also through views."""
    if reader in graph.consumers(old):
        others = [n for n in graph.consumers(old) if n is not reader]
        views = graph.views_of(old)
        graph.replace_uses(old, new, keep=(*others, *views))
    for view in graph.views_of(old):
        if reader in graph.all_consumers(view):
            layout = (graph.shape(view), graph.strides(view), graph.view_offset(view))
            _redirect(graph, view, graph.add_view(new, view, *layout), reader)
