"""Operators that only choose or move elements, applied to integers instead of what they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operators import is_op, operator_writing
from daceopt.ir.nodes.quantized import BYTES
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._quantization import NotPlain, Steps, dequantization

_MOVES = ("MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Slice", "Gather", "Concat")
_LEAST, _MOST = 2.0**-100, 2.0**100  # steps whose multiples and quotients float32 rounds as any others


@dataclass(frozen=True)
class RequantizationRemoval(Transformation):
    """Quantise nothing that was dequantised with the same scale and zero point, and only moved in between.

    before:  y = QuantizeLinear(MaxPool(DequantizeLinear(x, s, z)), s, z)
    after:   y = MaxPool(x)

    The quotient of (q - z) * s and s is so near to the integer q - z that rounding gives it back. Maxima are the same,
    for scales are positive.
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not is_op(node, "QuantizeLinear") or graph.dtype(graph.result(node, 0)) not in BYTES:
            return
        try:
            yield from self._find(graph, node)
        except NotPlain as reason:
            yield NearMiss(node, str(reason))

    def _find(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        operand = graph.operand(node, 0)
        move = operator_writing(graph, operand, *_MOVES)
        moved = [operand] if move is None else _move(graph, move)
        pairs = [dequantization(graph, name) for name in moved]
        steps = Steps.of(graph, node).whole("the result")
        if any(one is None for one in pairs):
            return
        sources = [one[0] for one in pairs if one is not None]
        if reason := _why_not(graph, graph.result(node, 0), steps, [one for one in pairs if one is not None]):
            yield NearMiss(node, reason)
        elif move is None:
            yield Site(graph, (node,), {"sources": sources})
        elif (reason := _why_not_alone(graph, move)) is not None:
            yield NearMiss(node, reason)
        else:
            yield Site(graph, (node, move), {"sources": sources})

    def apply(self, site: Site) -> None:
        graph, node, sources = site.graph, site.nodes[0], site["sources"]
        out = graph.result(node, 0)
        if len(site.nodes) == 1:
            graph.take_out((node,))
            graph.add_operator("Identity", sources, [out])
            return
        move = site.nodes[1]
        rest = graph.inputs_of(move)[len(sources) :]
        graph.take_out(site.nodes)
        graph.add_operator(move.op_type, [*sources, *rest], [out], dict(move.attributes))


def _move(graph: Graph, move: Any) -> list[str]:
    """The operands whose elements ``move`` moves."""
    inputs = graph.inputs_of(move)
    return [str(n) for n in (inputs if move.op_type == "Concat" else inputs[:1])]


def _why_not(graph: Graph, out: str, steps: tuple[float, int], pairs: Sequence[tuple[str, Steps]]) -> str | None:
    for source, own in pairs:
        if graph.dtype(source) != graph.dtype(out) or own.whole("the operand") != steps:
            return f"{source} has another type, scale or zero point than {out}"
    return None if _LEAST < steps[0] < _MOST else f"a scale of {np.float32(steps[0])}"


def _why_not_alone(graph: Graph, move: object) -> str | None:
    if any(n is not None for n in list(graph.outputs_of(move))[1:]):
        return "the places of the maxima are read"
    name = graph.result(move, 0)
    if len(graph.all_consumers(name)) != 1 or graph.is_kept(name) or graph.views_of(name):
        return f"the floats {name} are read elsewhere, too"
    return None
