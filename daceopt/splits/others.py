"""Scattered rows; and the nodes that are not split, each with its reason."""

from __future__ import annotations

import copy

from daceopt.ir.control.region import Region
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import GroupedProduct, HostCall, IndexAdd, NanWatch
from daceopt.ops.core.algorithm import Algorithm
from daceopt.splits.rules import CannotSplit, Division, Piece, Rule, box, splits


@splits(IndexAdd)
def index_add_split(graph: Graph, node: IndexAdd, axis: int) -> Division:
    """Along an axis of the rows. The node takes contiguous arrays: it reads a copy, and its result is copied."""
    reads, target = graph.reads(node), graph.writes(node)["dW"]
    rank = len(graph.shape(target))
    own = axis % rank
    if own == 0:
        raise CannotSplit(f"{node.label}: any element of dY may be added to any row of dW; split an axis of the rows")
    lead = len(graph.shape(reads["Index"])) - 1

    def build(b: Builder, piece: Piece) -> None:
        part = piece.outputs[target]
        rows = b.contiguous(box(b, piece, reads["dY"], lead + own, piece.start, piece.extent))
        result = graph.add_array("rows", graph.shape(part), graph.dtype(part))
        graph.add_node(copy.deepcopy(node), {"Index": reads["Index"], "dY": rows}, {"dW": result})
        b.copy(result, out=part)

    return Division({target: own}, build)


_REFUSED: dict[type, str] = {
    GroupedProduct: "{0.label} has groups of rows that are known when it runs",
    NanWatch: "{0.label} says whether all is computed again",
    HostCall: "{0.label} calls Python ({0.callback}), which takes whole arrays",
    Algorithm: "{0.label} is an algorithm over whole arrays, which says nothing of which elements it reads",
    Region: "{0.label} is control flow; split the nodes of its bodies",
    Operator: "operator {0.op_type} is not lowered yet; what it is lowered to can be split",
}


def _refuse(reason: str) -> Rule:
    def rule(graph: Graph, node: Node, axis: int) -> Division:
        raise CannotSplit(reason.format(node))

    return rule


for _node_class, _reason in _REFUSED.items():
    splits(_node_class)(_refuse(_reason))
