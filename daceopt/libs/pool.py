"""Max and average pooling in our own C++, on the host and on devices: any strides, workspace in a layout of ours, NaN
kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.ir.nodes.library import Pool, PoolBackward
from daceopt.ir.scalar import types
from daceopt.libs.base import OwnCode, Requirements, register, support
from daceopt.libs.emission import boolean, braces, extent, stream

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_FLOATS = (dace.float32, dace.float64)
_BYTES = (dace.int8, dace.uint8)


class _Pools(OwnCode):
    """Pools of one to three spatial dimensions, float32 and float64; maxima of bytes too. ``prefix``: of its functions
    and files; ``machine``: the target whose compiler takes these."""

    prefix: ClassVar[str] = ""
    machine: ClassVar[str] = "cpu"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any pool of floats, maxima of int8 and uint8, in any layouts."""
        if not isinstance(node, (Pool, PoolBackward)):
            return "for pools only"
        names = node.operands(graph)
        inner, outer = _ends(names)
        dtype = graph.dtype(names[outer])
        accepted = _FLOATS + _BYTES if node.kind == "max" else _FLOATS
        if dtype not in accepted or graph.dtype(names[inner]) != dtype:
            return f"element types {graph.dtype(names[inner])}, {dtype}; expected one of {accepted} for both"
        rank = len(graph.shape(names[outer])) - 2
        if rank not in (1, 2, 3) or len(node.kernel) != rank:
            return f"{rank} spatial dimensions with a kernel of {len(node.kernel)}; expected 1 to 3, and as many"
        if node.kind == "max" and isinstance(node, PoolBackward) and "Workspace" not in names:
            return "the backward pass of a max pool needs the workspace of its forward pass"
        return _why_not_workspace(graph, names, outer)

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, (Pool, PoolBackward))
        names = node.operands(graph)
        inner, outer = _ends(names)
        shape = _shape(node, graph, names[inner], names[outer], names.get("Workspace", names[outer]))
        backward = isinstance(node, PoolBackward)
        function = f"daceopt::{self.prefix}{node.kind}_pool{'_backward' if backward else ''}"
        first, second = (outer, inner) if backward else (inner, outer)
        arguments = [*self._before(graph), shape, first, second]
        if node.kind == "average":
            return f"{function}({', '.join([*arguments, boolean(node.count_include_pad)])});"
        where = "Workspace" if "Workspace" in names else "static_cast<uint8_t*>(nullptr)"
        arguments.insert(len(arguments) - backward, where)  # the gradient of x is last
        return f"{function}({', '.join(arguments)});"

    def _before(self, graph: Graph) -> list[str]:
        """Arguments of a call that only this library has."""
        return []

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        names = node.operands(graph)
        macro = f"DACEOPT_T={types.cpp(graph.dtype(names[_ends(names)[1]]))}"
        header = f"{self.prefix}pool.h"
        return support(f"{self.prefix}pool.cpp", header=header, define=macro, target=self.machine)


class NativePool(_Pools):
    """Pools on the host: vectors along channels or rows."""

    name: ClassVar[str] = "pool"


class DevicePool(_Pools):
    """Pools on CUDA devices that are no kernels of a graph (``pool-opening``): a thread for each element."""

    name: ClassVar[str] = "device_pool"
    targets = ("cuda",)
    machine = "cuda"
    prefix: ClassVar[str] = "device_"

    def _before(self, graph: Graph) -> list[str]:
        return [stream(graph)]


def _ends(names: dict[str, str]) -> tuple[str, str]:
    """Connectors on the input's and on the result's side."""
    return ("dX", "dY") if "dY" in names else ("X", "Y")


def _why_not_workspace(graph: Graph, names: dict[str, str], outer: str) -> str | None:
    workspace = names.get("Workspace")
    if workspace is None:
        return None
    if graph.dtype(workspace) not in (dace.uint8, dace.int32):
        return f"Workspace has element type {graph.dtype(workspace)}, expected uint8 or int32"
    if graph.shape(workspace) != graph.shape(names[outer]):
        return f"Workspace must have the shape of {outer}"
    return None


def _shape(node: Pool | PoolBackward, graph: Graph, inner: str, outer: str, workspace: str) -> str:
    """The ``PoolShape`` of a call."""
    small, large = graph.shape(outer), graph.shape(inner)
    rank = len(small) - 2
    strides, dilations, begin, end = node.window(rank)

    def spatial(values: Sequence[int], fill: int) -> str:
        return braces([*[fill] * (3 - rank), *values])

    def steps(name: str) -> str:
        own = graph.strides(name)
        return braces([*own[:2], *[0] * (3 - rank), *own[2:]])

    window = [spatial(node.kernel, 1), spatial(strides, 1), spatial(dilations, 1), spatial(begin, 0), spatial(end, 0)]
    sizes = [extent(small[0]), extent(small[1]), spatial(large[2:], 1), spatial(small[2:], 1)]
    return f"daceopt::PoolShape{{{', '.join([*sizes, *window, steps(inner), steps(outer), steps(workspace)])}}}"


register(NativePool())
register(DevicePool())
