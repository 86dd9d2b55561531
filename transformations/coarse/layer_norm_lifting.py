"""Layer normalization from the primitives that exporters emit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._normalization import Normalization, apply_normalization, find_mean, parts_of
from daceopt.transformations.coarse._patterns import made_by, trailing


@dataclass(frozen=True)
class LayerNormLifting(Transformation):
    """One LayerNormalization instead of mean, difference, variance, root and quotient; scale and bias join it.

    before:  d = x - ReduceMean(x); y = d / Sqrt(ReduceMean(d * d) + eps) * gamma + beta
    after:   y = LayerNormalization(x, gamma, beta; epsilon=eps)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        parts = parts_of(graph, node)
        if parts is None:
            return
        centered = made_by(graph, parts.numerator, "Sub")
        if centered is None:
            return
        x, mean = graph.inputs_of(centered)
        reduction = find_mean(graph, mean)
        if reduction is None or graph.inputs_of(reduction)[0] != x:
            yield NearMiss(node, f"what is subtracted from {x} is not its mean")
        elif parts.of != parts.numerator:
            yield NearMiss(node, f"the variance is taken of {parts.of}, expected {parts.numerator}")
        elif trailing(graph, reduction) is None or trailing(graph, reduction) != trailing(graph, parts.reduction):
            yield NearMiss(node, "mean and variance must be over the same trailing dimensions, which are kept")
        else:
            yield from _site(graph, node, str(x), parts)

    def apply(self, site: Site) -> None:
        apply_normalization(site, "LayerNormalization")


def _site(graph: Graph, node: Any, x: str, parts: Normalization) -> Iterable[Site | NearMiss]:
    found = parts.site(graph, node, x, ("Mul", "Add"))
    yield NearMiss(node, found) if isinstance(found, str) else found
