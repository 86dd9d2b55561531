"""Convolutions by torch itself, through a call into Python: for machines without oneDNN's wheels and for float64."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import dace
import numpy as np

from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights, takes_narrow
from daceopt.libs import host
from daceopt.libs.base import Library, Missing, Requirements, register

if TYPE_CHECKING:
    import torch

    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_ORDER = {
    Convolution: (("X", "W", "B", "S", "T", "Z"), ("Y",)),
    ConvolutionBackwardData: (("dY", "W"), ("dX",)),
    ConvolutionBackwardWeights: (("X", "dY"), ("dW",)),
}


class Aten(Library):
    """All three passes in float32 and float64, one to three spatial dimensions, some microseconds slower a call."""

    name: ClassVar[str] = "aten"

    def available(self) -> Missing | None:
        """Never missing: daceopt needs torch anyway."""
        return None

    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any convolution of 1 to 3 spatial dimensions in one floating type."""
        if type(node) not in _ORDER:
            return "torch is used for convolutions only"
        assert isinstance(node, (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights))
        if node.blocked_connectors(graph):
            return f"operands {sorted(node.blocked_connectors(graph))} in blocks of channels"
        names = node.operands(graph)
        dtypes = {graph.dtype(name) for name in names.values()}
        one = len(dtypes) == 1 and dtypes <= {dace.float32, dace.float64}
        if not one and not takes_narrow(node, graph):
            return f"element types {sorted(map(str, dtypes))}, expected float32, float64, or factors of bfloat16"
        kernel = graph.shape(names["W" if "W" in names else "dW"])
        if 0 in kernel:
            return f"a kernel of shape {kernel}, which has no elements"
        rank = len(kernel) - 2
        return None if rank in (1, 2, 3) else f"{rank} spatial dimensions, expected 1 to 3"

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights))
        names = node.operands(graph)
        inputs, outputs = ({c: names[c] for c in side if c in names} for side in _ORDER[type(node)])
        strides, dilations, begin, end = node.window(len(graph.shape(names[next(iter(inputs))])) - 2)
        payload = {
            "kind": type(node).__name__,
            "names": [*inputs, *outputs],
            "window": [strides, dilations, begin, end],
            "group": node.group,
            "slope": node.slope if getattr(node, "activation", None) == "relu" else 1.0,
            "ceiling": getattr(node, "ceiling", math.inf),
        }
        return host.emit_call(graph, "daceopt.libs.aten:run", json.dumps(payload), inputs, outputs)

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        return host.requirements()


def run(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Compute one pass of a convolution; ``payload`` is what ``Aten.emit`` wrote."""
    import torch

    call = json.loads(payload)
    operands = {name: _tensor(array) for name, array in zip(call["names"], (*inputs, *outputs), strict=True)}
    narrow = {name for name, tensor in operands.items() if tensor.dtype is torch.bfloat16}
    tensors = {name: tensor.float() if name in narrow else tensor for name, tensor in operands.items()}
    with torch.no_grad():
        _PASSES[call["kind"]](tensors, call)
        for name in narrow.intersection(call["names"][len(inputs) :]):
            operands[name].copy_(tensors[name])


def _tensor(array: np.ndarray) -> torch.Tensor:
    import torch

    if array.dtype.name == "bfloat16":  # which torch does not take from NumPy
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _arguments(call: dict[str, Any]) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
    """What the operators of torch take, on input that is padded already."""
    strides, dilations, begin, _ = call["window"]
    return strides, [0] * len(begin), dilations, False, [0] * len(begin), call["group"]


def _pad(x: torch.Tensor, call: dict[str, Any]) -> torch.Tensor:
    """``x`` with the zeros that the window reads; torch's own padding is symmetric only."""
    import torch

    _, _, begin, end = call["window"]
    amounts = [p for pair in reversed(list(zip(begin, end, strict=True))) for p in pair]
    return torch.nn.functional.pad(x, amounts) if any(amounts) else x


def _forward(t: dict[str, torch.Tensor], call: dict[str, Any]) -> None:
    import torch

    y = torch.ops.aten.convolution(_pad(t["X"], call), t["W"], t.get("B"), *_arguments(call))
    per_channel = (-1, *[1] * (y.dim() - 2))
    y = y * t["S"].view(per_channel) if "S" in t else y
    y = y + t["T"].view(per_channel) if "T" in t else y
    y = y + t["Z"] if "Z" in t else y
    if call["slope"] != 1:
        y = torch.nn.functional.leaky_relu(y, call["slope"]) if call["slope"] else y.relu()
        y = y.clamp(max=call["ceiling"])
    t["Y"].copy_(y)


def _backward_data(t: dict[str, torch.Tensor], call: dict[str, Any]) -> None:
    import torch

    padded = _pad(torch.empty_like(t["dX"]), call)
    gradient, _, _ = torch.ops.aten.convolution_backward(
        t["dY"], padded, t["W"], None, *_arguments(call), [True, False, False]
    )
    for dimension, (first, size) in enumerate(zip(call["window"][2], t["dX"].shape[2:], strict=True), start=2):
        gradient = gradient.narrow(dimension, first, size)
    t["dX"].copy_(gradient)


def _backward_weights(t: dict[str, torch.Tensor], call: dict[str, Any]) -> None:
    import torch

    _, weights, _ = torch.ops.aten.convolution_backward(
        t["dY"], _pad(t["X"], call), torch.empty_like(t["dW"]), None, *_arguments(call), [False, True, False]
    )
    t["dW"].copy_(weights)


_PASSES = {
    "Convolution": _forward,
    "ConvolutionBackwardData": _backward_data,
    "ConvolutionBackwardWeights": _backward_weights,
}

register(Aten())
