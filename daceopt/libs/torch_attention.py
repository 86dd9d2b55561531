"""Attention on a device by torch's fused operators: flash, cuDNN's or the memory-efficient one, as torch would.

They are called from C++ through torch's dispatcher, in both directions. Which one is taken is decided in each call, by
torch: ``torch.nn.attention.sdpa_kernel`` around it says what it may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.ir.nodes.attention_calls import AttentionBackward, AttentionCall
from daceopt.ir.scalar import types
from daceopt.ir.scalar.types import DType
from daceopt.libs.base import Requirements, register, support
from daceopt.libs.emission import boolean, number
from daceopt.libs.torch_arrays import array, has_negative_strides, place
from daceopt.libs.torch_headers import TorchOperators, link_to_torch

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_ALIGNED = 16  # bytes of which a row of a head is a multiple: kernels load so many at once
_FORWARD, _BACKWARD = ("Y", "Lse"), ("Y", "Lse", "dY", "dQ", "dK", "dV")


class TorchAttention(TorchOperators):
    """Attention and its gradients on CUDA devices, in float32, float16 and bfloat16."""

    name: ClassVar[str] = "torch_attention"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """One element type that torch's kernels have, and heads of a size that they load at once."""
        if not isinstance(node, AttentionCall):
            return "torch has no form of it here"
        names = node.operands(graph)
        dtypes = {graph.dtype(names[c]) for c in ("Q", "K", "V")}
        if len(dtypes) != 1 or not dtypes <= {dace.float32, *types.HALVES}:
            listed = "float32, float16, bfloat16"
            return f"element types {sorted(map(types.name_of, dtypes))}, expected one of {listed}"
        negative = [c for c, n in names.items() if has_negative_strides(graph, n)]
        if negative:
            return f"{' and '.join(sorted(negative))} has negative strides, which torch does not take"
        return _why_not_size(node, graph, dtypes.pop())

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, AttentionCall)
        operands = ", ".join(_operand(node, graph, c) for c in ("Q", "K", "V", "Mask"))
        settings = f"{place(graph)}, {number(node.scale)}, {boolean(node.causal)}, {operands}"
        backward = isinstance(node, AttentionBackward)
        others = ", ".join(_operand(node, graph, c) for c in (_BACKWARD if backward else _FORWARD))
        function = "device_attention_backward" if backward else "device_attention"
        return f"daceopt::{function}(daceopt::DeviceAttention{{{settings}}}, {others});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        return support(
            "torch_attention.cpp",
            header="torch_attention.h",
            flags=link_to_torch(),
            version=self.version(),
            standard="c++20",
        )


def _operand(node: AttentionCall, graph: Graph, connector: str) -> str:
    names = node.operands(graph)
    whole = connector not in names or connector in ("Mask", "Lse")
    return array(graph, names, connector, None if whole else node.apart(graph, connector))


def _why_not_size(node: AttentionCall, graph: Graph, dtype: DType) -> str | None:
    sizes = {node.apart(graph, c)[0][3] for c in ("Q", "K", "V")}
    if all(isinstance(n, int) and int(n) * dtype.bytes % _ALIGNED == 0 for n in sizes):
        return None
    listed = ", ".join(map(str, sorted(sizes, key=str)))
    return f"heads of size {listed}; torch's kernels take multiples of {_ALIGNED // dtype.bytes}"


register(TorchAttention())
