"""Root-mean-square normalization from the primitives that exporters emit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._normalization import apply_normalization, parts_of
from daceopt.transformations.coarse._patterns import made_by, trailing


@dataclass(frozen=True)
class RmsNormLifting(Transformation):
    """One RMSNormalization instead of square, mean, root and quotient; the scale joins it.

    before:  y = x * Reciprocal(Sqrt(ReduceMean(x * x) + eps)) * gamma
    after:   y = RMSNormalization(x, gamma; epsilon=eps)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        parts = parts_of(graph, node)
        if parts is None:
            return
        if parts.of != parts.numerator:
            yield NearMiss(node, f"the mean square is of {parts.of}, but {parts.numerator} is divided by its root")
        elif trailing(graph, parts.reduction) is None:
            yield NearMiss(node, "the mean must be over trailing dimensions, which are kept")
        elif not _is_difference_from_mean(graph, parts.numerator):
            found = parts.site(graph, node, parts.numerator, ("Mul",))
            yield NearMiss(node, found) if isinstance(found, str) else found

    def apply(self, site: Site) -> None:
        apply_normalization(site, "RMSNormalization")


def _is_difference_from_mean(graph: Graph, name: str) -> bool:
    """That is layer normalization, which has a lifting of its own."""
    node = made_by(graph, name, "Sub")
    mean = made_by(graph, graph.inputs_of(node)[1], "ReduceMean") if node is not None else None
    return mean is not None and graph.inputs_of(mean)[0] == graph.inputs_of(node)[0]
