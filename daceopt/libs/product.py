"""Micro-kernels that schedules call on tiles: oneDNN's through torch, or plain C++."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.ir.graph.kinds import Node
from daceopt.ir.legality.microkernels import MicroProduct
from daceopt.ir.scalar import types
from daceopt.libs.base import Library, Missing, OwnCode, Requirements, register, support

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

_BRGEMM = {
    dace.float32: "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb",
    types.BFLOAT16: "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb",
}


class TorchProduct(Library):
    """By ``at::native::cpublas::brgemm``, the micro-kernels that oneDNN builds its own products from."""

    name: ClassVar[str] = "torch_product"

    def available(self) -> Missing | None:
        """Missing where torch exports no micro-kernels."""
        if all(map(_is_exported, _BRGEMM)):
            return None
        return Missing("libtorch_cpu.so exports no cpublas::brgemm", "install torch for x86-64")

    def version(self) -> str:
        import torch

        return str(torch.__version__) if self.available() is None else ""

    def supports(self, node: Node, graph: Graph) -> str | None:
        return _why_not(node, tuple(_BRGEMM))

    def emit(self, node: Node, graph: Graph) -> str:
        """Nothing: the kernel itself has the call."""
        return ""

    def requirements(self, node: Node, graph: Graph) -> Requirements:
        """Nothing to link: the symbol is looked up in the process."""
        if node.dtype == types.BFLOAT16:
            return support("product_torch_narrow.cpp", header="narrow_product.h")
        return support("product_torch.cpp", header="product_impl.h")


class NativeProduct(OwnCode):
    """In C++ of our own; bfloat16 is widened."""

    name: ClassVar[str] = "native_product"

    def supports(self, node: Node, graph: Graph) -> str | None:
        return _why_not(node, (dace.float32, dace.float64, types.BFLOAT16))

    def emit(self, node: Node, graph: Graph) -> str:
        """Nothing: the kernel itself has the call."""
        return ""

    def requirements(self, node: Node, graph: Graph) -> Requirements:
        if node.dtype == types.BFLOAT16:
            return support("product_native_narrow.cpp", header="narrow_product.h")
        return support("product_native.cpp", header="product_impl.h")


def _why_not(node: Node, dtypes: tuple[types.DType, ...]) -> str | None:
    if not isinstance(node, MicroProduct):
        return "micro-kernels are called on tiles only"
    names = " or ".join(map(str, dtypes))
    return None if node.dtype in dtypes else f"element type {node.dtype}, expected {names}"


@cache
def _is_exported(dtype: types.DType) -> bool:
    import torch  # noqa: F401  (loads the library)

    try:
        return hasattr(ctypes.CDLL("libtorch_cpu.so"), _BRGEMM[dtype])
    except OSError:
        return False


register(TorchProduct())
register(NativeProduct())
