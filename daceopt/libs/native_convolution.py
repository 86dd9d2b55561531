"""Convolutions by plain loops of our own: no library serves where nothing but a compiler may be needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import dace
import sympy

from daceopt.codegen.compiler import Flags
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes import blocked
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights
from daceopt.ir.scalar import types
from daceopt.ir.scalar.types import DType
from daceopt.libs.base import INCLUDE, OwnCode, Requirements, headers_digest, register
from daceopt.libs.emission import boolean, braces, extent, number

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_TYPES: dict[DType, str] = {dace.float32: "float", dace.float64: "double", types.BFLOAT16: "daceopt::Bfloat16"}
_KINDS = (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)


class NativeConvolution(OwnCode):
    """All three passes over any layout; never chosen but by name (``libs.prefer``): it is slow."""

    name: ClassVar[str] = "native_convolution"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Floats and bfloat16 in 1 to 3 spatial dimensions."""
        if not isinstance(node, _KINDS):
            return "for convolutions only"
        names = node.operands(graph)
        if other := {graph.dtype(n) for n in names.values()} - _TYPES.keys():
            return f"element types {sorted(map(str, other))}, expected float32, float64 or bfloat16"
        rank = len(graph.shape(names["W" if "W" in names else "dW"])) - 2
        return None if rank in (1, 2, 3) else f"{rank} spatial dimensions, expected 1 to 3"

    def emit(self, node: DenseNode, graph: Graph) -> str:
        names = node.operands(graph)

        def operand(connector: str) -> str:
            return _operand(graph, connector, names.get(connector), connector in node.blocked_connectors(graph))

        def row(connector: str) -> str:
            name = names.get(connector)
            ctype = _TYPES[graph.dtype(name)] if name else "float"
            return f"({ctype}*)({connector})" if name else "(float*)(nullptr)"

        shape = _shape(node, graph, names)
        if isinstance(node, Convolution):
            rows = ", ".join(map(row, "BST"))
            rest = f"{operand('X')}, {operand('W')}, {rows}, {operand('Z')}, {operand('Y')}"
            relu = f"{boolean(node.activation == 'relu')}, {number(node.slope)}, {number(node.ceiling)}"
            return f"daceopt::convolution_native({shape}, {rest}, {relu});"
        if isinstance(node, ConvolutionBackwardData):
            return f"daceopt::convolution_native_data({shape}, {operand('dY')}, {operand('W')}, {operand('dX')});"
        rest = f"{operand('X')}, {operand('dY')}, {operand('dW')}, {row('dB')}"
        return f"daceopt::convolution_native_weights({shape}, {rest});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        headers = ("daceopt/convolution_native.h",)
        return Requirements(Flags(includes=(str(INCLUDE),), headers=headers, version=headers_digest()))


def _operand(graph: Graph, connector: str, name: str | None, is_blocked: bool) -> str:
    if name is None:
        return "daceopt::Operand<float>{nullptr, {0, 0, 0, 0, 0}}"
    ctype, steps = _TYPES[graph.dtype(name)], graph.strides(name)
    block = f", {graph.shape(name)[-1]}" if is_blocked else ""
    steps = steps[:-1] if is_blocked else steps
    strides = braces([*steps[:2], *[0] * (5 - len(steps)), *steps[2:]])
    return f"daceopt::Operand<{ctype}>{{({ctype}*)({connector}), {strides}{block}}}"


def _shape(node: Node, graph: Graph, names: dict[str, str]) -> str:
    image, result = (
        blocked.shape_of(graph, node, next(c for c in choice if c in names)) for choice in (("X", "dX"), ("Y", "dY"))
    )
    weights, rank = graph.shape(names["W" if "W" in names else "dW"]), node.spatial(graph)
    strides, dilations, begins, _ = node.window(rank)

    def spatial(values: Sequence[int], fill: int) -> str:
        return braces([*[fill] * (3 - rank), *values])

    group = node.group
    counts = [extent(image[0]), extent(group), extent(weights[1]), extent(sympy.sympify(weights[0]) / group)]
    space = [spatial(image[2:], 1), spatial(result[2:], 1), spatial(weights[2:], 1)]
    window = [spatial(strides, 1), spatial(dilations, 1), spatial(begins, 0)]
    return f"daceopt::ConvolutionShape{{{', '.join([*counts, *space, *window])}}}"


register(NativeConvolution())
