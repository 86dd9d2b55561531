"""Name the sub-graphs that are partitioned: connected nodes without those that run somebody else's code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.fusion.relations import NESTS
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import DenseNode
from daceopt.passes.transform import Site, Transformation, label_of


@dataclass(frozen=True)
class ClusterExtraction(Transformation):
    """Say which sub-graphs are partitioned, one site each; the graph stays as it is.

    before:  gemm -> tanh -> sort -> add -> sum
    after:   the same: {gemm, tanh} and {add, sum}

    Maximal sets of eligible nodes (APOLLO, Zhao et al., MLSys 2022, section 3.1): kernels and dense library nodes.
    Others are not: operators, code of users, host calls, control flow, communication and algorithms that are no loop
    nests. They follow from the graph at any time (``sub_graphs``), so no state of it can be out of date.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    changes_dataflow: ClassVar[bool] = False

    def match(self, graph: Graph) -> Iterator[Site]:
        for members in sub_graphs(graph):
            first, last = label_of(members[0]), label_of(members[-1])
            yield Site(
                graph, members, {"title": f"{len(members)} node{'s' * (len(members) > 1)}, from {first} to {last}"}
            )

    def apply(self, site: Site) -> None:
        """Sites are what there is to see."""


def is_eligible(node: Node) -> bool:
    """May ``node`` become part of a micro-graph: is it a kernel, or a library node that stands for a loop nest?"""
    if isinstance(node, KernelNode):
        return True
    return isinstance(node, DenseNode) and any(c.__name__ in NESTS for c in type(node).__mro__)


def sub_graphs(graph: Graph) -> list[tuple[Node, ...]]:
    """The maximal connected sets of eligible nodes, each in the order of execution; they share no node."""
    order = [n for n in graph.nodes() if is_eligible(n)]
    home: dict[Node, Node] = {n: n for n in order}

    def leader(node: Node) -> Node:
        while home[node] is not node:
            home[node] = home[home[node]]
            node = home[node]
        return node

    writers = {name: n for n in order for name in graph.outputs_of(n) if name is not None}
    for node in order:
        for name in filter(None, graph.inputs_of(node)):
            for source in graph.sources(name):
                if source in writers:
                    home[leader(node)] = leader(writers[source])
    members_of: dict[Node, list[Node]] = {}
    for node in order:
        members_of.setdefault(leader(node), []).append(node)
    return [tuple(members) for members in members_of.values()]
