"""Choose the machine that a graph is generated for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class DevicePlacement(Transformation):
    """Let all arrays live on a target's device, and its printer and compiler make the kernels.

    before:  arrays on cpu, kernels as C++
    after:   arrays on cuda, kernels as CUDA C++

    It comes first: which libraries there are, and what they take, depends on it.
    """

    level: ClassVar[str] = "coarse"
    changes_dataflow: ClassVar[bool] = False
    target: str = "cuda"

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        if graph.options.target != self.target:
            yield Site(graph, ())

    def apply(self, site: Site) -> None:
        site.graph.options = replace(site.graph.options, target=self.target)
