"""A swap of the last two dimensions that exporters write with leading dimensions merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._patterns import is_op, made_by, substitute


@dataclass(frozen=True)
class TransposeLifting(Transformation):
    """One Transpose of the whole array, which is a view, instead of a Reshape on either side.

    before:  y = Reshape(Transpose(Reshape(x, [b*h, s, d]), [0, 2, 1]), [b, h, d, s])
    after:   y = Transpose(x, [0, 1, 3, 2])
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not is_op(node, "Reshape"):
            return
        middle = made_by(graph, graph.inputs_of(node)[0], "Transpose")
        first = made_by(graph, graph.inputs_of(middle)[0], "Reshape") if middle is not None else None
        if first is None or list(middle.attribute("perm") or ()) != [0, 2, 1]:
            return
        x, output = str(graph.inputs_of(first)[0]), str(graph.outputs_of(node)[0])
        shape, merged = graph.shape(x), graph.shape(str(graph.inputs_of(middle)[0]))
        if len(shape) < 2 or graph.shape(output) != (*shape[:-2], shape[-1], shape[-2]):
            yield NearMiss(
                node,
                f"{output} of shape {graph.shape(output)} is not {x} of shape {shape} with its last dimensions swapped",
            )
        elif merged[1:] != shape[-2:]:
            yield NearMiss(node, f"the first Reshape splits the last two dimensions of {shape} into {merged[1:]}")
        else:
            yield Site(graph, (node,), {"x": x})

    def apply(self, site: Site) -> None:
        rank = len(site.graph.shape(site["x"]))
        substitute(site.graph, site.nodes[0], "Transpose", [site["x"]], perm=[*range(rank - 2), rank - 1, rank - 2])
