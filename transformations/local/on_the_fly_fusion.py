"""Let readers compute point-wise results at the elements that they read, where those are other ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.cost.kernel_time import KernelTimes
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.access.dataflow import is_bijective
from daceopt.ir.fusion.inlining import Evaluation, evaluations, inline, why_not_inlined
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class OnTheFlyFusion(Transformation):
    """Put a point-wise kernel into its readers where they read it shifted, flipped, stepped, or in part.

    before:  for i < 2*n: t[i] = f(x[i])    for i < n: y[i] = t[i] * t[i + n]
    after:   for i < n: y[i] = f(x[i]) * f(x[i + n])

    Rausch et al., DaCeML, section 5.2 (offset and partially equal spaces); DaCe's ``OTFMapFusion``. Readers that walk
    all of it, in whatever order, are left to ``map-fusion``. ``recompute``: how often each element may be computed, on
    average: with 1 no more is computed than before. ``max_assignments`` bounds the code of one statement.
    """

    level: ClassVar[str] = "local"
    recompute: float = 1.0
    max_assignments: int = 64

    def __post_init__(self) -> None:
        if not self.recompute > 0 or self.max_assignments < 2:
            raise DaceoptError(f"{self}: expected recompute above 0, and 2 assignments or more")

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, KernelNode):
            return
        written = [n for n in graph.outputs_of(node) if n is not None]
        readers = list(dict.fromkeys(r for n in written for r in graph.all_consumers(n)))
        if any(map(graph.is_kept, written)) or not all(isinstance(r, KernelNode) for r in readers):
            return
        try:
            kernels = self._inline(graph, node.kernel, [r.kernel for r in readers])
        except Unsupported as error:
            kernels = str(error)
        if isinstance(kernels, str):
            yield NearMiss(node, kernels)
        elif kernels:
            yield Site(graph, (node, *readers), {"kernels": kernels})

    def _inline(self, graph: Graph, first: Kernel, readers: list[Kernel]) -> list[Kernel] | str | None:
        pairs = [(reader, each) for reader in readers for each in evaluations(graph, first, reader)]
        if all(_is_whole(graph, reader, each) for reader, each in pairs):
            return None
        reason = why_not_inlined(graph, first) or next((f"{r.label} is tiled" for r in readers if r.is_tiled), None)
        if reason is not None:
            return reason
        number = KernelTimes(graph).number
        once = max(number(first.most(first.extents)), 1.0)
        often = sum(number(reader.most(reader.stages[e.stage].params)) for reader, e in pairs) / once
        if often > self.recompute:
            return f"each element would be computed {often:.3g} times"
        kernels = [inline(graph, first, reader) for reader in readers]
        longest = max(len(s.assignments) for k in kernels for s in k.stages)
        return kernels if longest <= self.max_assignments else f"a statement would have {longest} assignments"

    def apply(self, site: Site) -> None:
        site.graph.take_out(reversed(site.nodes))
        for kernel in site["kernels"]:
            site.graph.add_kernel(kernel)


def _is_whole(graph: Graph, reader: Kernel, each: Evaluation) -> bool:
    """Does the reader walk all of the array forward, in whatever order of its dimensions?"""
    return all(e == 0 or e in reader.extents for e in each.index) and is_bijective(
        each.index, graph.shape(each.array), reader.extents
    )
