"""Library nodes on a device by torch's own operators: cuBLAS, cuDNN and whatever else torch calls there.

They are called from C++ through torch's dispatcher, without Python, on the current stream. The source compiles against
any build of torch; it runs where that build knows the device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.library import (
    Contraction,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    IndexAdd,
    takes_narrow,
)
from daceopt.ir.scalar import types
from daceopt.libs import contraction
from daceopt.libs.base import Requirements, register, support
from daceopt.libs.emission import boolean, braces, number
from daceopt.libs.torch_arrays import array, has_negative_strides, place
from daceopt.libs.torch_headers import TorchOperators, link_to_torch

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_FLOATS = (dace.float32, dace.float64)
_CONVOLUTIONS: dict[type, tuple[str, tuple[str, ...]]] = {
    Convolution: ("device_convolution", ("X", "W", "B", "Z", "Y")),
    ConvolutionBackwardData: ("device_convolution_data", ("dY", "W", "dX")),
    ConvolutionBackwardWeights: ("device_convolution_weights", ("X", "dY", "dW")),
}


class TorchDevice(TorchOperators):
    """Products, convolutions with their gradients, and scattered addition, on CUDA devices."""

    name: ClassVar[str] = "torch_device"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Products and convolutions of one floating type, or of narrow factors (rounded as eager PyTorch's); added
        rows."""
        negative = [c for c, n in node.operands(graph).items() if has_negative_strides(graph, n)]
        if negative:
            return f"{' and '.join(sorted(negative))} has negative strides, which torch does not take"
        if isinstance(node, Contraction):
            return contraction.why_not(node, graph, (*_FLOATS, *types.HALVES))
        if isinstance(node, IndexAdd):
            return _why_not_index_add(node, graph)
        return _why_not_convolution(node, graph) if type(node) in _CONVOLUTIONS else "torch has no form of it here"

    def emit(self, node: DenseNode, graph: Graph) -> str:
        names = node.operands(graph)
        where = place(graph)
        if isinstance(node, Contraction):
            operands = ", ".join(array(graph, names, c) for c in ("A", "B", "Bias", "C", "Y"))
            settings = f"{where}, {number(node.alpha)}, {boolean(node.activation == 'relu')}"
            return f"daceopt::device_product(daceopt::DeviceProduct{{{settings}, {operands}}});"
        if isinstance(node, IndexAdd):
            operands = ", ".join(array(graph, names, c) for c in ("Index", "dY", "dW"))
            return f"daceopt::device_index_add({where}, {operands}, {boolean(node.sure)});"
        function, connectors = _CONVOLUTIONS[type(node)]
        operands = ", ".join(array(graph, names, c) for c in connectors)
        relu = f"{boolean(node.activation == 'relu')}, " if isinstance(node, Convolution) else ""
        return f"daceopt::{function}({where}, {_window(node, graph, names)}, {relu}{operands});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        flags = link_to_torch()
        return support(
            "torch_device.cpp", header="torch_device.h", flags=flags, version=self.version(), standard="c++20"
        )


def _why_not_convolution(node: Node, graph: Graph) -> str | None:
    names = node.operands(graph)
    dtypes = {graph.dtype(name) for name in names.values()}
    if not takes_narrow(node, graph) and (len(dtypes) != 1 or not dtypes <= set(_FLOATS)):
        return f"element types {sorted(map(str, dtypes))}, expected one of {sorted(map(str, _FLOATS))}"
    if scaled := names.keys() & {"S", "T"}:
        return f"an epilogue with {' and '.join(sorted(scaled))}"
    if (getattr(node, "slope", 0), getattr(node, "ceiling", math.inf)) != (0, math.inf):
        return f"a relu with slope {node.slope} and ceiling {node.ceiling}"
    if node.blocked_connectors(graph):
        return f"operands {sorted(node.blocked_connectors(graph))} in blocks of channels"
    kernel = graph.shape(names["W" if "W" in names else "dW"])
    if 0 in kernel:
        return f"a kernel of shape {kernel}, which has no elements"
    return None if len(kernel) - 2 in (1, 2, 3) else f"{len(kernel) - 2} spatial dimensions, expected 1 to 3"


def _why_not_index_add(node: IndexAdd, graph: Graph) -> str | None:
    names = node.operands(graph)
    index, result = graph.dtype(names["Index"]), graph.dtype(names["dW"])
    if index not in (dace.int32, dace.int64):
        return f"Index has element type {index}, expected int32 or int64"
    if result not in _FLOATS or graph.dtype(names["dY"]) != result:
        return f"element types {graph.dtype(names['dY'])} -> {result}, expected float32 or float64 for both"
    return None


def _window(node: Node, graph: Graph, names: dict[str, str]) -> str:
    rank = len(graph.shape(names[node.required[0]])) - 2
    parts = ", ".join(braces(part) for part in node.window(rank))
    return f"daceopt::DeviceWindow{{{parts}, {node.group}}}"


register(TorchDevice())
