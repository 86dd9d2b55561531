"""Matrix products by the MKL that torch brings inside ``libtorch_cpu.so``."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.cost.rates import Multiply, register_product
from daceopt.ir.nodes.library import Contraction, GroupedProduct
from daceopt.ir.scalar import types
from daceopt.libs import contraction, grouped_product
from daceopt.libs.base import Library, Missing, Requirements, register, support, working_memory

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_SYMBOLS = ("sgemm_64_", "dgemm_64_", "sgemm_batch_64_", "dgemm_batch_64_")


class Mkl(Library):
    """float32 and float64 products over any strides, of bfloat16 by widening; what no BLAS takes is packed first."""

    name: ClassVar[str] = "mkl"

    def available(self) -> Missing | None:
        """Missing when torch is another build (no MKL inside), as on machines other than x86-64."""
        lacking = _lacking()
        if not lacking:
            return None
        return Missing(
            f"libtorch_cpu.so has no {', '.join(lacking)}", "install an x86-64 build of torch, which has MKL inside"
        )

    def version(self) -> str:
        import torch

        return (
            torch.__config__.show().partition("Math Kernel Library Version ")[2].split(" ")[0] if not _lacking() else ""
        )

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any contraction of float32, float64 or bfloat16 whose result has unit stride in its rows or columns; products
        of groups, not of bfloat16."""
        if isinstance(node, GroupedProduct):
            return grouped_product.why_not(node, graph)
        if not isinstance(node, Contraction):
            return "MKL is used for products only"
        return contraction.why_not(node, graph, (dace.float32, dace.float64, types.BFLOAT16))

    def emit(self, node: DenseNode, graph: Graph) -> str:
        """One call into ``src/contraction_mkl.cpp``, or one for each group."""
        if isinstance(node, GroupedProduct):
            return grouped_product.emit(node, graph, "contraction_mkl")
        assert isinstance(node, Contraction)
        return contraction.emit(node, graph, "contraction_mkl")

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        """Nothing of MKL's to link: the symbols are looked up in the process."""
        if isinstance(node, GroupedProduct):
            return working_memory() + grouped_product.requirements(node, graph, "contraction_mkl.cpp")
        assert isinstance(node, Contraction)
        macro = contraction.element_macro(node, graph)
        return working_memory() + support("contraction_mkl.cpp", header="contraction.h", define=macro)


def _multiply() -> Multiply | None:
    """The product of squares by which this library's speed is measured."""
    if _lacking():
        return None
    sgemm, one, zero = ctypes.CDLL("libtorch_cpu.so").sgemm_64_, ctypes.c_float(1), ctypes.c_float(0)

    def multiply(a: ctypes.c_void_p, b: ctypes.c_void_p, c: ctypes.c_void_p, edge: int) -> None:
        n = ctypes.byref(ctypes.c_int64(edge))
        sgemm(b"N", b"N", n, n, n, ctypes.byref(one), b, n, a, n, ctypes.byref(zero), c, n)

    return multiply


@cache
def _lacking() -> list[str]:
    import torch  # noqa: F401  (loads the library)

    try:
        library = ctypes.CDLL("libtorch_cpu.so")
    except OSError:
        return list(_SYMBOLS)
    return [symbol for symbol in _SYMBOLS if not hasattr(library, symbol)]


register(Mkl())
register_product(Mkl.name, _multiply)
