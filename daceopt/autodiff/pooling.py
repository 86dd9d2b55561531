"""The gradient of pools; a maximum remembers where it stood."""

from __future__ import annotations

from collections.abc import Collection

from daceopt.autodiff.convolution import like
from daceopt.autodiff.rules import Contributions, Grads, adjoint, preparation
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Pool, PoolBackward

_ATTRIBUTES = ("kind", "kernel", "strides", "pads", "dilations", "count_include_pad", "ceil_mode")


@preparation(Pool)
def remember_positions(b: Builder, node: Pool) -> None:
    """A maximum that will be differentiated writes its workspace."""
    names = node.operands(b.graph)
    if node.kind != "max" or "Workspace" in names:
        return
    y = names["Y"]
    space = b.graph.add_array("positions", b.graph.shape(y), node.workspace_dtype(), b.graph.strides(y))
    attributes = {name: getattr(node, name) for name in _ATTRIBUTES}
    b.graph.remove(node)
    b.library(Pool, {"X": names["X"]}, {"Y": y, "Workspace": space}, **attributes)


@adjoint(Pool)
def pool_adjoint(b: Builder, node: Pool, grads: Grads, wrt: Collection[str]) -> Contributions:
    """dX by the pool's own backward node."""
    names = node.operands(b.graph)
    dx = like(b, names["X"], "d_data")
    inputs = {"dY": grads[names["Y"]]}
    if node.kind == "max":
        inputs["Workspace"] = names["Workspace"]
    b.library(PoolBackward, inputs, {"dX": dx}, **{name: getattr(node, name) for name in _ATTRIBUTES})
    return [(names["X"], dx)]
