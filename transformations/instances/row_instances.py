"""Layers of large images run depth first, on some rows at a time, with halos computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.order import by_priority, sources_of
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.passes.transform import NearMiss, Site, Transformation, label_of
from daceopt.transformations.instances._instance_maker import InstanceMaker
from daceopt.transformations.instances._pieces import pieces_of
from daceopt.transformations.instances._row_regions import RowRegion, row_cuts, row_regions


@dataclass(frozen=True)
class RowInstances(Transformation):
    """Run regions of layers on some rows of the image at a time, one instance after the other.

    before:  y = conv3x3(x); z = conv3x3(y)                                             (64 rows)
    after:   y_0 = conv3x3(x[0:34]); z[0:32] = conv3x3(y_0); y_1 = conv3x3(x[30:64]); z[32:64] = conv3x3(y_1)

    Sub-graph instances of GraphTurbo (Zhao et al., OSDI 2023) along the height of one image; bodies of loops over the
    batch, which are small already, stay as they are. A row of a result needs several rows of what windows go over; what
    two instances need (the halo) both compute, several layers deep. The instances have arrays of their own, as small as
    their rows, and write their share of the results in place. Which layers, and how many instances, follows from what
    stays near and what is computed again (``_row_regions.py``); ``cache``: bytes that are near.
    """

    level: ClassVar[str] = "hardware"
    enters_bodies: ClassVar[bool] = False
    changes_dataflow: ClassVar[bool] = True
    sites_are_independent: ClassVar[bool] = True
    cache: int = 0

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        if graph.sub_graphs:
            return
        cuts, reasons = row_cuts(graph)
        for node, reason in reasons.items():
            yield NearMiss(node, reason)
        order, lookers = _arrange(graph, set(cuts))
        regions = row_regions(graph, order, cuts, self.cache) if cuts else []
        if regions:
            members = tuple(node for region in regions for node, _ in region.members)
            title = "; ".join(map(_title, regions))
            yield Site(graph, members, {"regions": regions, "order": order, "lookers": lookers, "title": title})

    def apply(self, site: Site) -> None:
        graph, order = site.graph, site["order"]
        instances = {region.members[0][0]: _split(graph, region) for region in site["regions"]}
        graph.order = _with_lookers(graph, _place(graph, order, instances), site["lookers"])


def _title(region: RowRegion) -> str:
    first, last = label_of(region.members[0][0]), label_of(region.members[-1][0])
    return f"{len(region.members)} nodes from {first} to {last} in {region.count} instances of rows"


def _arrange(graph: Graph, rows: set[Node]) -> tuple[list[Node], list[Node]]:
    """The nodes of a graph with those of ``rows`` as near to each other as can be: what these do not need runs before
    all that does, and what they do not lead back to (the second list) is left out of the first."""
    nodes = graph.nodes()
    sources = {node: [source for _, source in sources_of(graph, node)] for node in nodes}
    after: set[Node] = set()  # rows and all that reads them
    for node in nodes:
        if node in rows or not after.isdisjoint(sources[node]):
            after.add(node)
    before: set[Node] = set()  # rows and all that they read
    for node in reversed(nodes):
        if node in rows or node in before:
            before |= {node, *sources[node]}
    interval = [n for n in nodes if n in before or n not in after]
    place = {n: float(k) if n in after else -1.0 for k, n in enumerate(interval)}
    return by_priority(interval, sources, place), [n for n in nodes if n not in place]


def _split(graph: Graph, region: RowRegion) -> list[Node]:
    """The nodes of all instances, one instance after the other."""
    axes = {name: axis for _, cut in region.members for name, axis in cut.division.axes.items()}
    pieces = pieces_of(graph, region.members, region.count, "recomputed")
    maker = InstanceMaker(graph, SubGraph(axes, region.count), pieces, {})
    for node, cut in region.members:
        maker.split(node, cut)
    return [node for nodes in maker.record().instance_nodes(graph) for node in nodes]


def _place(graph: Graph, order: Sequence[Node], instances: dict[Node, list[Node]]) -> list[Node]:
    """``order`` with instances in the place of the first node that they stand for."""
    nodes = set(graph.compute())
    return [n for node in order for n in instances.get(node, [node]) if n in nodes]


def _with_lookers(graph: Graph, order: Sequence[Node], lookers: Sequence[Node]) -> list[Node]:
    """``order`` with each of ``lookers`` behind the last node that it reads of."""
    place = {node: float(k) for k, node in enumerate(order)}
    for node in lookers:
        place[node] = max((place[source] for _, source in sources_of(graph, node)), default=0.0)
    return sorted(place, key=place.__getitem__)
