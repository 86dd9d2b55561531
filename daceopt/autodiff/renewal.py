"""Results of operators that a backward can compute again, element by element, from statistics that were left.

In the joint graph such a result is written by a kernel of its own instead of by the operator: whether it is computed
again, and with what else, is then decided as for each element-wise kernel (:mod:`daceopt.autodiff.forwarding`). What a
library node of the backward reads, and what is compared, stays the forward's own.
"""

from __future__ import annotations

from collections.abc import Collection

from daceopt.autodiff.forwarding import Boundary
from daceopt.ir.data.provenance import label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.graph.operator import Operator
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ops.core import registry


def renew(graph: Graph, boundary: Boundary, stored: Collection[str]) -> Boundary:
    """Give each result for which a rule of ``@again`` is there, but not those called ``stored``, a kernel in the joint
    graph; returns ``boundary`` with these."""
    nodes, arrays = set(graph.nodes()), set(graph.arrays())
    for node in graph.operators():
        rule = registry.again_rule(graph, node) if node in boundary.nodes else None
        if rule is not None and not _is_fixed(graph, boundary, graph.result(node, 0), stored):
            _renew(graph, node, rule)
    new = set(graph.arrays()) - arrays
    return Boundary(
        {*boundary.nodes, *(set(graph.nodes()) - nodes)},
        {*boundary.arrays, *new},
        {*boundary.local, *new},
        boundary.compared,
    )


def _is_fixed(graph: Graph, boundary: Boundary, array: str, stored: Collection[str]) -> bool:
    readers = [node for node in graph.all_consumers(array) if node not in boundary.nodes]
    in_memory = any(not isinstance(node, KernelNode) for node in readers)
    return in_memory or array in boundary.compared or array in stored


def _renew(graph: Graph, node: Operator, rule: registry.Again) -> None:
    inputs, outputs = graph.inputs_of(node), graph.outputs_of(node)
    graph.drop_write(node, node.output_connectors[0])
    with graph.label_nodes(label_of(node), graph.origins_of(node)):
        rule(Builder(graph), node, inputs, outputs, require(outputs, 0))
