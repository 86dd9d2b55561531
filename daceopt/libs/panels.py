"""Products in loops by a factor that all iterations share: our own C++, over panels that are packed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import dace

from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import types
from daceopt.libs import contraction
from daceopt.libs.base import OwnCode, Requirements, register, support
from daceopt.libs.emission import hold

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode


class Panels(OwnCode):
    """float32 and float64, for products that ``held_over`` says something of."""

    name: ClassVar[str] = "panels"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """One product whose right factor is held, and whose result has unit stride in its rows."""
        if not isinstance(node, Contraction):
            return "for products only"
        if not node.held_over:
            return "no loop holds the right factor"
        if len(graph.shape(node.operands(graph)["Y"])) != 2:
            return "a batch of products, expected one"
        if graph.strides(node.operands(graph)["Y"])[-1] != 1:
            return f"output strides {graph.strides(node.operands(graph)['Y'])}: the last must be 1"
        return contraction.why_not(node, graph, (dace.float32, dace.float64))

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, Contraction)
        declared, panels = hold(node.held_over)
        return declared + contraction.emit(node, graph, "contraction_panels", panels)

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        macro = f"DACEOPT_T={types.cpp(graph.dtype(node.operands(graph)['Y']))}"
        return support("contraction_panels.cpp", header="contraction_held.h", define=macro)


register(Panels())
