"""Replace each node of a sub-graph by one node for each instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.sub_graphs import SubGraph
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.splits import CannotSplit
from daceopt.transformations.instances._cuts import cut_along
from daceopt.transformations.instances._instance_maker import InstanceMaker
from daceopt.transformations.instances._pieces import Member, pieces_of


@dataclass(frozen=True)
class InstanceSplitting(Transformation):
    """Put the instances of ``graph.sub_graphs`` in the place of their nodes; each computes parts of the same arrays.

    before:  y = f(x); z = g(y)                          sub-graphs {f: 4 instances}, {g: 2}
    after:   y_0 = f(x[0:2]); ... y_3 = f(x[6:8]); z_0 = g(y_01); z_1 = g(y_23)
             where y_01 consists of y_0 and y_1

    GraphTurbo (Zhao et al., OSDI 2023, sections 3.3 and 3.5). An instance reads the smallest part that has what it
    needs, and depends on those that write elements of it: redundant edges are not there, and what is concatenated is
    not copied. Where instances share elements (halos), each computes them for itself, or reads them from the one before
    it, as the sub-graph says.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        members_at: dict[int, list[Member]] = {}
        groups = graph.sub_graphs
        for position, group in enumerate(groups):
            nodes = group.nodes(graph)
            if group.is_split or not nodes:
                continue
            try:
                members_at[position] = [(n, cut_along(graph, n, group.axes)) for n in nodes] if group.count > 1 else []
            except CannotSplit as error:
                yield NearMiss(nodes[0], str(error))
        levels = _levels(groups, members_at)
        for position, members in members_at.items():
            yield self._site(graph, groups, position, members, levels)

    def _site(
        self,
        graph: Graph,
        groups: Sequence[SubGraph],
        position: int,
        members: Sequence[Member],
        levels: Mapping[str, list[int]],
    ) -> Site | NearMiss:
        group = groups[position]
        nodes = tuple(group.nodes(graph))
        try:
            pieces = pieces_of(graph, members, group.count, group.halos)
        except CannotSplit as error:
            return NearMiss(nodes[0], str(error))
        own = f", {len(pieces.own)} arrays with halos of their own" if pieces.own else ""
        title = f"sub-graph {position}: {len(nodes)} nodes in {group.count} instances{own}"
        data = {"position": position, "members": members, "pieces": pieces, "levels": levels, "title": title}
        return Site(graph, nodes, data)

    def apply(self, site: Site) -> None:
        graph, position = site.graph, site["position"]
        group = graph.sub_graphs[position]
        instances = InstanceMaker(graph, group, site["pieces"], site["levels"])
        for node, cut in site["members"]:
            instances.split(node, cut)
        graph.put_sub_graph(instances.record() if site["members"] else _unsplit(group), position)


def _unsplit(group: SubGraph) -> SubGraph:
    """One instance that has all nodes."""
    return replace(group, instances=(tuple(group.axes),))


def _levels(groups: Sequence[SubGraph], members_at: Mapping[int, Sequence[Member]]) -> dict[str, list[int]]:
    """Array -> the numbers of larger parts that its readers want, each a divisor of the next, the last one of the
    number of instances that write it."""
    group_of = {node: k for k, members in members_at.items() for node, _ in members}
    axis_of = {
        n: (axis, k) for k, members in members_at.items() for _, cut in members for n, axis in cut.division.axes.items()
    }
    counts_of: dict[str, set[int]] = {}
    for k, members in members_at.items():
        for node, cut in members:
            for name, link in cut.links.items():
                axis, maker = axis_of.get(name, (None, None))
                if axis == link.axis and maker != group_of[node]:
                    counts_of.setdefault(name, set()).add(groups[k].count)
    return {name: _chain(groups[axis_of[name][1]].count, counts) for name, counts in counts_of.items()}


def _chain(count: int, counts: set[int]) -> list[int]:
    chain: list[int] = []
    for size in sorted(counts, reverse=True):
        if 1 < size < count and (chain[0] if chain else count) % size == 0:
            chain.insert(0, size)
    return chain
