"""Removal of nodes and arrays whose values nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class DeadCodeElimination(Transformation):
    """Remove every node from which no output can be reached.

    before:  a = Exp(x); b = Neg(a); y = Relu(x)     (y is the output)
    after:   y = Relu(x)
    """

    level: ClassVar[str] = "coarse"

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        """One site that holds all dead nodes."""
        needed = {s for n in graph.outputs for s in graph.sources(n)}
        dead: list[Node] = []
        for node in reversed(graph.nodes()):
            if needed.isdisjoint(n for n in graph.outputs_of(node) if n is not None):
                dead.append(node)
            else:
                needed.update(s for n in graph.inputs_of(node) if n is not None for s in graph.sources(n))
        if dead:
            yield Site(graph, tuple(dead))

    def apply(self, site: Site) -> None:
        for node in site.nodes:
            site.graph.remove(node)
        site.graph.prune()
