"""A constant zero padding folded into the convolution that reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation
from daceopt.transformations.coarse._patterns import int_list, is_op, made_by, reads_only, scalar, substitute


@dataclass(frozen=True)
class PadConvFusion(Transformation):
    """Fold a constant zero padding of the spatial dimensions into the convolution that reads it.

    before:  y = Conv(Pad(x, [0, 0, a, b, 0, 0, c, d]), w; pads=p)
    after:   y = Conv(x, w; pads=p + [a, b, c, d])
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        pad = made_by(graph, graph.inputs_of(node)[0], "Pad") if is_op(node, "Conv") else None
        if pad is None:
            return
        added = _spatial_pads(graph, node, pad)
        if isinstance(added, str):
            yield NearMiss(node, added)
            return
        own = node.attribute("pads") or [0] * len(added)
        yield Site(graph, (node, pad), {"pads": [int(p) + a for p, a in zip(own, added, strict=True)]})

    def apply(self, site: Site) -> None:
        graph, (node, pad) = site.graph, site.nodes
        operands = [graph.inputs_of(pad)[0], *graph.inputs_of(node)[1:]]
        substitute(graph, node, "Conv", operands, **{**node.attributes, "pads": site["pads"]})


def _spatial_pads(graph: Graph, node: Any, pad: Any) -> list[int] | str:
    """Begins and ends of the padding of the spatial dimensions, or why it cannot move."""
    if node.attribute("auto_pad", "NOTSET") != "NOTSET":
        return f"the convolution chooses its padding itself (auto_pad={node.attribute('auto_pad')})"
    if pad.attribute("mode", "constant") != "constant":
        return f"the padding is of mode {pad.attribute('mode')}, expected constant"
    if not _is_zero(graph, pad):
        return "the padding value is not the constant zero"
    pads = _all_pads(graph, pad)
    if pads is None:
        return "the padding is not constant"
    if not reads_only(graph, str(graph.outputs_of(pad)[0]), node):
        return "the padded array has another user"
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    if any((*begins[:2], *ends[:2])):
        return f"batch or channels are padded too ({pads}): only spatial dimensions can be folded"
    if min(pads) < 0:
        return f"the padding crops ({pads}): a convolution can only add"
    return [*begins[2:], *ends[2:]]


def _is_zero(graph: Graph, pad: Any) -> bool:
    inputs = graph.inputs_of(pad)
    if pad.attribute("value") is not None:
        return bool(pad.attribute("value") == 0)
    return len(inputs) < 3 or inputs[2] is None or scalar(graph, inputs[2]) == 0


def _all_pads(graph: Graph, pad: Any) -> list[int] | None:
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
