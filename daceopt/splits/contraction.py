"""Products: rows of A, columns of B, or matrices of the batch."""

from __future__ import annotations

import copy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.splits.rules import Division, Piece, at, box, splits


@splits(Contraction)
def contraction_split(graph: Graph, node: Contraction, axis: int) -> Division:
    """Along any axis of Y; Bias and the residual follow it as they broadcast."""
    reads, y = graph.reads(node), graph.writes(node)["Y"]
    rank = len(graph.shape(y))
    own = axis % rank
    fixed = {"A": rank - 1, "B": rank - 2}  # the contracted axis is there, which is none of Y

    def build(b: Builder, piece: Piece) -> None:
        axes = {c: None if fixed.get(c) == own else at(graph, n, own, rank) for c, n in reads.items()}
        operands = {c: box(b, piece, n, axes[c], piece.start, piece.extent) for c, n in reads.items()}
        graph.add_node(copy.deepcopy(node), operands, {"Y": piece.outputs[y]})

    return Division({y: own}, build)
