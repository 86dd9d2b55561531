"""Our own C++: scattered addition, plain loops for products that no library serves, and the search for NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import dace
import sympy

from daceopt.ir.nodes.library import Contraction, GroupedProduct, IndexAdd, NanWatch
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import is_dense
from daceopt.libs import contraction, grouped_product
from daceopt.libs.base import OwnCode, Requirements, register, support
from daceopt.libs.emission import extent

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_PRODUCTS = tuple(dtype for dtype in types.DTYPES if dtype != dace.bool_)


class Native(OwnCode):
    """Always there; for products the last choice (integers, or torch without MKL)."""

    name: ClassVar[str] = "native"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Contractions of any arithmetic type; products of groups and IndexAdd of float32 and float64; NanWatch of
        float32."""
        if isinstance(node, Contraction):
            return contraction.why_not(node, graph, (*_PRODUCTS, types.BFLOAT16))
        if isinstance(node, GroupedProduct):
            return grouped_product.why_not(node, graph)
        if isinstance(node, IndexAdd):
            return _why_not_index_add(node, graph)
        if isinstance(node, NanWatch):
            return why_not_watched(graph, node.operands(graph)["X"])
        return "no plain loops for this kind of node"

    def emit(self, node: DenseNode, graph: Graph) -> str:
        """One call into ``src/contraction_native.cpp``, ``src/index_add.cpp`` or ``src/nan_watch.cpp``."""
        if isinstance(node, Contraction):
            return contraction.emit(node, graph, "contraction_native")
        if isinstance(node, GroupedProduct):
            return grouped_product.emit(node, graph, "contraction_native")
        names = node.operands(graph)
        if isinstance(node, NanWatch):
            return f"*Seen = daceopt::watch_for_nan(X, {extent(graph.size(names['X']))});"
        rows, count = graph.shape(names["dW"])[0], graph.size(names["Index"])
        width = sympy.Mul(*graph.shape(names["dW"])[1:])
        return f"daceopt::index_add(Index, {extent(count)}, dY, dW, {extent(rows)}, {extent(width)});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        if isinstance(node, Contraction):
            macro = contraction.element_macro(node, graph)
            return support("contraction_native.cpp", header="contraction.h", define=macro)
        if isinstance(node, GroupedProduct):
            return grouped_product.requirements(node, graph, "contraction_native.cpp")
        if isinstance(node, NanWatch):
            return support("nan_watch.cpp", header="nan_watch.h")
        return support("index_add.cpp", header="index_add.h")


def why_not_watched(graph: Graph, name: str) -> str | None:
    """Why no :class:`NanWatch` looks at the array; None where one may."""
    if graph.dtype(name) != dace.float32:
        return f"{name} has element type {graph.dtype(name)}, expected float32"
    dense = is_dense(graph.shape(name), graph.strides(name))
    return None if dense else f"{name} has gaps (strides {graph.strides(name)})"


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
