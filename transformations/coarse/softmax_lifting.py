"""Softmax from exponential, sum and quotient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._patterns import axes_of, is_op, made_by, substitute


@dataclass(frozen=True)
class SoftmaxLifting(Transformation):
    """One Softmax, which is numerically stable, with or without the maximum subtracted before.

    before:  e = Exp(x - ReduceMax(x, k)); y = e / ReduceSum(e, k)
    after:   y = Softmax(x; axis=k)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not is_op(node, "Div"):
            return
        numerator, denominator = graph.inputs_of(node)
        exponential, total = made_by(graph, numerator, "Exp"), made_by(graph, denominator, "ReduceSum")
        if exponential is None or total is None:
            return
        axes = axes_of(graph, total)
        if graph.inputs_of(total)[0] != numerator:
            yield NearMiss(node, f"the sum is of {graph.inputs_of(total)[0]}, expected the numerator {numerator}")
        elif axes is None or len(axes) != 1 or total.attribute("keepdims", 1) != 1:
            yield NearMiss(node, f"the sum is over axes {axes}, expected one constant axis that is kept")
        elif set(graph.all_consumers(str(numerator))) != {node, total} or numerator in graph.outputs:
            yield NearMiss(node, f"the exponential {numerator} has another user")
        else:
            x = _before_shift(graph, str(graph.inputs_of(exponential)[0]), axes)
            yield Site(graph, (node,), {"x": x, "axis": axes[0]})

    def apply(self, site: Site) -> None:
        substitute(site.graph, site.nodes[0], "Softmax", [site["x"]], axis=site["axis"])


def _before_shift(graph: Graph, name: str, axes: list[int]) -> str:
    """``x`` when ``name`` is ``x - max(x)`` over the same axis, else ``name`` itself: softmax ignores any shift."""
    node = made_by(graph, name, "Sub")
    if node is None:
        return name
    x, shift = graph.inputs_of(node)
    maximum = made_by(graph, shift, "ReduceMax")
    if maximum is None or graph.inputs_of(maximum)[0] != x or axes_of(graph, maximum) != axes:
        return name
    return str(x) if maximum.attribute("keepdims", 1) == 1 else name
