"""Let arrays that are never alive together share memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class TransientReuse(Transformation):
    """Plan one arena for all intermediates, reusing a slot as soon as its last reader has run.

    before:  a at 0, b at |a|, c at |a|+|b|
    after:   a at 0, b at |a|, c at 0        (a is dead when c is written)

    Rausch et al., DaCeML, section 5.4 (TransientReuse). The plan itself is made by ``build.memory`` when the program is
    built.
    """

    level: ClassVar[str] = "hardware"

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        if not graph.options.reuse_memory:
            yield Site(graph, ())

    def apply(self, site: Site) -> None:
        site.graph.options = replace(site.graph.options, reuse_memory=True)
