"""A constant zero padding folded into the convolution that reads it."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.operators import int_list, scalar
from daceopt.passes.patterns import Match, Op, PatternRule, op


@dataclass(frozen=True)
class PadConvFusion(PatternRule):
    """Fold a constant zero padding of the spatial dimensions into the convolution that reads it.

    before:  y = Conv(Pad(x, [0, 0, a, b, 0, 0, c, d]), w; pads=p)
    after:   y = Conv(x, w; pads=p + [a, b, c, d])
    """

    pattern = op("Conv", op("Pad", "x", ...).named("pad").called("the padded array"), "w", "b?").named("conv")

    def why_not(self, m: Match) -> str | None:
        graph, conv, pad = m.graph, m.node("conv"), m.node("pad")
        if conv.attribute("auto_pad", "NOTSET") != "NOTSET":
            return f"the convolution chooses its padding itself (auto_pad={conv.attribute('auto_pad')})"
        if pad.attribute("mode", "constant") != "constant":
            return f"the padding is of mode {pad.attribute('mode')}, expected constant"
        if not _is_zero(graph, pad):
            return "the padding value is not the constant zero"
        return _not_spatial(_all_pads(graph, pad))

    def replace(self, m: Match) -> Op:
        conv, pads = m.node("conv"), _all_pads(m.graph, m.node("pad")) or []
        rank = len(pads) // 2
        added = [*pads[2:rank], *pads[rank + 2 :]]
        own = conv.attribute("pads") or [0] * len(added)
        total = [int(p) + a for p, a in zip(own, added, strict=True)]
        return op("Conv", "x", "w", "b?", **{**conv.attributes, "pads": total})


def _not_spatial(pads: list[int] | None) -> str | None:
    if pads is None:
        return "the padding is not constant"
    rank = len(pads) // 2
    if any((*pads[:2], *pads[rank : rank + 2])):
        return f"batch or channels are padded too ({pads}): only spatial dimensions can be folded"
    return f"the padding crops ({pads}): a convolution can only add" if min(pads) < 0 else None


def _is_zero(graph: Graph, pad: Operator) -> bool:
    inputs = graph.inputs_of(pad)
    if pad.attribute("value") is not None:
        return bool(pad.attribute("value") == 0)
    return len(inputs) < 3 or inputs[2] is None or scalar(graph, inputs[2]) == 0


def _all_pads(graph: Graph, pad: Operator) -> list[int] | None:
    """Begins, then ends, of every dimension; None when they are not constant."""
    pads = int_list(graph, pad, "pads", 1)
    inputs = graph.inputs_of(pad)
    if pads is None or len(inputs) < 4 or inputs[3] is None:
        return pads
    axes = int_list(graph, pad, "axes", 3)
    if axes is None:
        return None
    rank = len(graph.shape(str(inputs[0])))
    result = [0] * (2 * rank)
    for k, axis in enumerate(axes):
        result[axis % rank], result[rank + axis % rank] = pads[k], pads[len(axes) + k]
    return result
