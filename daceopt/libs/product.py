"""Micro-kernels that schedules call on tiles: oneDNN's through torch, or plain C++."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import dace

from daceopt.ir import types
from daceopt.ir.microkernels import MicroProduct
from daceopt.libs.base import Library, Missing, OwnCode, Requirements, register, support

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph

_BRGEMM = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"
_HEADER = "product_impl.h"


class TorchProduct(Library):
    """float32 by ``at::native::cpublas::brgemm``, the micro-kernel that oneDNN builds its own products from."""

    name: ClassVar[str] = "torch_product"

    def available(self) -> Missing | None:
        """Missing where torch exports no micro-kernel of this type."""
        if _exported():
            return None
        return Missing("libtorch_cpu.so exports no cpublas::brgemm", "install torch 2.13 for x86-64")

    def version(self) -> str:
        """Return torch's version."""
        import torch

        return str(torch.__version__) if _exported() else ""

    def supports(self, node: Any, graph: Graph) -> str | None:
        """Tiles of float32."""
        if not isinstance(node, MicroProduct):
            return "micro-kernels are called on tiles only"
        return None if node.dtype == dace.float32 else f"element type {node.dtype}, expected float32"

    def emit(self, node: Any, graph: Graph) -> str:
        """Nothing: the kernel itself has the call."""
        return ""

    def requirements(self, node: Any, graph: Graph) -> Requirements:
        """Nothing to link: the symbol is looked up in the process."""
        return support("product_torch.cpp", header=_HEADER)


class NativeProduct(OwnCode):
    """float32 and float64 in C++ of our own."""

    name: ClassVar[str] = "native_product"

    def supports(self, node: Any, graph: Graph) -> str | None:
        """Tiles of float32 and float64."""
        if not isinstance(node, MicroProduct):
            return "micro-kernels are called on tiles only"
        known = node.dtype in (dace.float32, dace.float64)
        return None if known else f"element type {node.dtype}, expected float32 or float64"

    def emit(self, node: Any, graph: Graph) -> str:
        """Nothing: the kernel itself has the call."""
        return ""

    def requirements(self, node: Any, graph: Graph) -> Requirements:
        """The source of the micro-kernel for this one element type."""
        return support("product_native.cpp", header=_HEADER, define=f"DACEOPT_T={types.cpp(node.dtype)}")


@cache
def _exported() -> bool:
    import torch  # noqa: F401  (loads the library)

    try:
        return hasattr(ctypes.CDLL("libtorch_cpu.so"), _BRGEMM)
    except OSError:
        return False


register(TorchProduct())
register(NativeProduct())
