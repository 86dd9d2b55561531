"""Algorithms on a device by torch's own operators: of equal elements the places are those that PyTorch finds there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from daceopt.libs.base import Requirements, register, support
from daceopt.libs.emission import extent
from daceopt.libs.torch_arrays import array, place, why_no_tensors
from daceopt.libs.torch_headers import TorchOperators, link_to_torch
from daceopt.ops.core.algorithm import Algorithm

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

FUNCTIONS = frozenset(
    (
        *("bitcast", "cumulate", "product_gradient", "ranked_index"),
        *("running_extremum", "scatter_rows", "searchsorted", "top_indices"),
    )
)
"""What models of PyTorch become; other algorithms come of ONNX files, whose programs run on a host."""


class TorchAlgorithms(TorchOperators):
    """Sorting, searching, scanning and scattering on CUDA devices."""

    name: ClassVar[str] = "torch_algorithms"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Those of ``FUNCTIONS``, over arrays in rows of types that torch has."""
        if not isinstance(node, Algorithm):
            return "for algorithms only"
        if node.function not in FUNCTIONS:
            return f"torch has no form of {node.function} here"
        names = node.operands(graph).values()
        strided = sorted(n for n in names if not graph.is_contiguous(n))
        if strided:
            return f"{', '.join(strided)} must be contiguous"
        return why_no_tensors(graph, names)

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, Algorithm)
        names, (inputs, outputs) = node.operands(graph), node.arity
        read, written = (
            ", ".join(array(graph, names, f"{kind}{k}") for k in range(count))
            for kind, count in (("In", inputs), ("Out", outputs))
        )
        parameters = ", ".join(map(extent, node.parameters))
        arrays = f"daceopt::DeviceArrays{{{read}}}, daceopt::DeviceArrays{{{written}}}"
        return f"daceopt::device_{node.function}({place(graph)}, {arrays}, daceopt::Parameters{{{parameters}}});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        flags = link_to_torch()
        return support(
            "torch_algorithms.cpp", header="torch_algorithms.h", flags=flags, version=self.version(), standard="c++20"
        )


register(TorchAlgorithms())
