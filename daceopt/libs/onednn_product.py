"""Matrix products by oneDNN: where they are faster than MKL's, and where a program has to run without torch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.cost.rates import Multiply, register_product
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import types
from daceopt.libs import contraction, onednn
from daceopt.libs.base import Requirements, register

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode


class OneDnnProduct(onednn.OneDnnWheels):
    """float32 products over any strides; operands that no BLAS takes are packed first."""

    name: ClassVar[str] = "onednn_product"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any contraction of float32 whose result has unit stride in its rows or columns."""
        if not isinstance(node, Contraction):
            return "for products only"
        return contraction.why_not(node, graph, (dace.float32,))

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, Contraction)
        return contraction.emit(node, graph, "contraction_onednn")

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        return self.support("contraction_onednn.cpp", header="contraction.h")


class OneDnnNarrowProduct(OneDnnProduct):
    """bfloat16 products, with sums in float32, on the machine's AMX or AVX-512 units."""

    name: ClassVar[str] = "onednn_narrow_product"
    prepares: ClassVar[bool] = True

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any contraction of bfloat16 factors whose result has unit stride in its rows or columns."""
        if not isinstance(node, Contraction):
            return "for products only"
        return contraction.why_not(node, graph, (types.BFLOAT16,), prepares=True)

    def emit(self, node: DenseNode, graph: Graph) -> str:
        """One call into ``src/contraction_narrow.cpp``, which may keep the right factor from iteration to iteration, or
        from call to call."""
        assert isinstance(node, Contraction)
        declared, weights = onednn.kept_weights(node, graph)
        return declared + contraction.emit(node, graph, "contraction_onednn", weights)

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        """As for float32, from a source of its own."""
        assert isinstance(node, Contraction)
        header = "contraction_held.h" if node.held_over or node.packed else "contraction.h"
        needs = self.support("contraction_narrow.cpp", header=header)
        return needs + self.support("onednn_weights.cpp", header="onednn.h") if node.packed else needs


def _multiply() -> Multiply | None:
    """The product of squares by which this library's speed is measured."""
    path = onednn.library()
    if path is None:
        return None
    import torch  # noqa: F401  (brings the OpenMP that programs run on)

    sgemm, one, zero = ctypes.CDLL(str(path)).dnnl_sgemm, ctypes.c_float(1), ctypes.c_float(0)

    def multiply(a: ctypes.c_void_p, b: ctypes.c_void_p, c: ctypes.c_void_p, edge: int) -> None:
        n, plain = ctypes.c_int64(edge), ctypes.c_char(b"N")
        sgemm(plain, plain, n, n, n, one, a, n, b, n, zero, c, n)

    return multiply


register(OneDnnProduct())
register(OneDnnNarrowProduct())
register_product(OneDnnProduct.name, _multiply)
