"""Our own C++: scattered addition, and plain loops for products that no library serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import dace
import sympy

from daceopt.ir import types
from daceopt.ir.nodes.library import Contraction, IndexAdd, takes_narrow
from daceopt.libs import contraction
from daceopt.libs.base import OwnCode, Requirements, register, support
from daceopt.libs.emission import extent

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_PRODUCTS = tuple(dtype for dtype in types.DTYPES if dtype != dace.bool_)


class Native(OwnCode):
    """Always there; for products the last choice (integers, or torch without MKL)."""

    name: ClassVar[str] = "native"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Contractions of any arithmetic type; IndexAdd of floats and 4 or 8 byte integers."""
        if isinstance(node, Contraction):
            return contraction.why_not(node, graph, (*_PRODUCTS, *node.narrow))
        if isinstance(node, IndexAdd):
            return _why_not_index_add(node, graph)
        return "no plain loops for this kind of node"

    def emit(self, node: DenseNode, graph: Graph) -> str:
        """One call into ``src/contraction_native.cpp`` or ``src/index_add.cpp``."""
        if isinstance(node, Contraction):
            return contraction.emit(node, graph, "contraction_native")
        names = node.operands(graph)
        rows, count = graph.shape(names["dW"])[0], graph.size(names["Index"])
        width = sympy.Mul(*graph.shape(names["dW"])[1:])
        return f"daceopt::index_add(Index, {extent(count)}, dY, dW, {extent(rows)}, {extent(width)});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        """Our headers and the source of the call, for this one element type."""
        names = node.operands(graph)
        if isinstance(node, Contraction):
            ctype = types.cpp(graph.dtype(names["Y"]))
            macro = "DACEOPT_NARROW=1" if takes_narrow(node, graph) else f"DACEOPT_T={ctype}"
            return support("contraction_native.cpp", header="contraction.h", define=macro)
        return support("index_add.cpp", header="index_add.h")


def _why_not_index_add(node: IndexAdd, graph: Graph) -> str | None:
    names = node.operands(graph)
    index, result = graph.dtype(names["Index"]), graph.dtype(names["dW"])
    if index not in (dace.int32, dace.int64):
        return f"Index has element type {index}, expected int32 or int64"
    if result not in (dace.float32, dace.float64) or graph.dtype(names["dY"]) != result:
        return f"element types {graph.dtype(names['dY'])} -> {result}, expected float32 or float64 for both"
    shape = graph.shape(names["dW"])
    if not shape or graph.shape(names["dY"]) != (*graph.shape(names["Index"]), *shape[1:]):
        return f"dY has shape {graph.shape(names['dY'])}, expected that of Index followed by {shape[1:]}"
    strided = [c for c, name in names.items() if not graph.is_contiguous(name)]
    return f"{', '.join(sorted(strided))} must be contiguous" if strided else None


register(Native())
