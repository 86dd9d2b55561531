"""Choose the layouts of intermediates for a whole network, by an integer program over what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph import Graph
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.layout._layout_costs import CONVOLUTIONS, POOLS, problem_of


@dataclass(frozen=True)
class LayoutSearch(Transformation):
    """Store images row by row or with their channels innermost, whichever makes the network fastest.

    before:  y: (N, C, H, W) strides (CHW, HW, W, 1) = Convolution(x, w)
    after:   y: (N, C, H, W) strides (HWC, 1, WC, C) = Convolution(x, w)

    Libraries convolve images with channels innermost, and copy others; kernels lose where they walk across memory;
    inputs and outputs have the layout that their user gave them. Costs are bytes at this machine's rates. Only strides
    change: shapes and indices stay, views follow, and an array that a view cannot follow keeps its layout (Rausch et
    al., DaCeML, section 5.4).
    """

    level: ClassVar[str] = "layout"
    sites_are_independent: ClassVar[bool] = True

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        if not any(isinstance(node, (*CONVOLUTIONS, *POOLS)) for node in graph.nodes()):
            return
        problem, known = problem_of(graph)
        second = problem.solve()
        for node in graph.nodes():
            written = dict.fromkeys(graph.root(n)[0] for n in graph.outputs_of(node) if n is not None)
            changed = {
                name: known[name].strides[int(name in second)][name]
                for name in written
                if name in known and known[name].own != int(name in second)
            }
            if changed:
                yield Site(graph, (node,), changed)

    def apply(self, site: Site) -> None:
        for name, strides in site.found.items():
            site.graph.set_strides(name, strides)
