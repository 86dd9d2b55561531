"""Conv as a Convolution node; windows, paddings and ``auto_pad``, which pooling shares."""

from __future__ import annotations

from typing import Any

from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ops import values
from daceopt.ops.library import Convolution
from daceopt.ops.registry import FLOATS, Names, Operator, lowering, supports


def window(graph: Graph, node: Operator, x: str, kernel: list[int], out: str) -> dict[str, Any]:
    """Attributes ``strides``, ``dilations`` and ``pads`` of a library node, with defaults and ``auto_pad`` resolved."""
    rank = len(kernel)
    strides = list(node.attribute("strides") or [1] * rank)
    dilations = list(node.attribute("dilations") or [1] * rank)
    pads = list(node.attribute("pads") or [0] * (2 * rank))
    mode = node.attribute("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(graph, x, out, kernel, strides, dilations, mode == "SAME_UPPER")
    return {"strides": strides, "dilations": dilations, "pads": [0] * (2 * rank) if mode == "VALID" else pads}


def _same_pads(
    graph: Graph, x: str, out: str, kernel: list[int], strides: list[int], dilations: list[int], upper: bool
) -> list[int]:
    begins, ends = [], []
    for k, (size, result) in enumerate(zip(graph.shape(x)[2:], graph.shape(out)[2:])):
        total = max(0, (int(result) - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - int(size))
        begins.append(total // 2 if upper else total - total // 2)
        ends.append(total - begins[-1])
    return begins + ends


def why_not_window(graph: Graph, node: Operator, rank: int) -> str | None:
    """The reason for which a window operator over ``rank`` spatial dimensions has no library node."""
    x = str(graph.inputs_of(node)[0])
    if rank not in (1, 2, 3) or len(graph.shape(x)) != rank + 2:
        return f"{rank} spatial dimensions over an input of shape {graph.shape(x)}; supported are 1 to 3"
    mode = node.attribute("auto_pad", "NOTSET")
    if mode.startswith("SAME") and not all(isinstance(s, int) for s in graph.shape(x)[2:]):
        return f"auto_pad={mode} over symbolic spatial dimensions {graph.shape(x)[2:]}; expected fixed ones"
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        return f"auto_pad={mode!r}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
    return None


@lowering("Conv", types=FLOATS)
def convolution(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, w, out = str(inputs[0]), str(inputs[1]), str(outputs[0])
    bias = values.at(inputs, 2)
    reads = {"X": x, "W": w} | ({"B": bias} if bias is not None else {})
    attributes = window(b.graph, node, x, [int(k) for k in b.graph.shape(w)[2:]], out)
    b.library(Convolution, reads, {"Y": out}, group=int(node.attribute("group", 1)), **attributes)


@supports("Conv")
def why_not_convolution(graph: Graph, node: Operator) -> str | None:
    kernel = graph.shape(str(graph.inputs_of(node)[1]))[2:]
    if not all(isinstance(k, int) for k in kernel):
        return f"kernel of symbolic size {kernel}; expected a fixed one"
    return why_not_window(graph, node, len(kernel))
