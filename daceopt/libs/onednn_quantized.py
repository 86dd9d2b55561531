"""Products and convolutions of 8-bit integers by oneDNN, on the machine's units for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import dace
import sympy

from daceopt.ir.nodes.library import is_constant
from daceopt.ir.nodes.quantized import BYTES, QuantizedConvolution, QuantizedProduct, bounds, clamps
from daceopt.ir.scalar.dims import dim, row_major
from daceopt.libs import onednn
from daceopt.libs.base import Requirements, register
from daceopt.libs.emission import boolean, braces, element, extent
from daceopt.system import cpu_features

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

UNITS = ("avx512_vnni", "avx_vnni")


def why_no_units() -> str | None:
    """Why products of 8-bit integers are not computed here: without these units they would saturate on the way."""
    missing = onednn.OneDnn().available()
    if missing:
        return str(missing)
    return (
        f"this CPU has no units for 8-bit products ({' or '.join(UNITS)})" if cpu_features().isdisjoint(UNITS) else None
    )


class OneDnnQuantized(onednn.OneDnnWheels):
    """Nodes of ``ir/nodes/quantized.py`` whose weights are constants; these are packed once."""

    name: ClassVar[str] = "onednn_quantized"

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Operands and results of the types that the nodes name, in layouts without gaps, and constant weights."""
        if not isinstance(node, (QuantizedConvolution, QuantizedProduct)):
            return "for products and convolutions of 8-bit integers only"
        names = node.operands(graph)
        dtypes = {c: graph.dtype(n) for c, n in names.items()}
        if not {dtypes["X"], dtypes["W"]} <= set(BYTES) or dtypes["Y"] not in (*BYTES, dace.float32):
            return f"element types {sorted(map(str, dtypes.values()))}; expected 8-bit integers"
        if any(dtypes.get(c, dace.float64) != dace.float64 for c in "SB"):
            return "scales and shifts of other types than float64"
        return why_no_units() or _why_not_weights(node, graph, names["W"]) or _why_not_layout(node, graph, names)

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, (QuantizedConvolution, QuantizedProduct))
        names = node.operands(graph)
        declared, weights = "static daceopt::PackedWeights packed; ", ", &packed"
        if not is_constant(graph, names["W"]):
            declared, weights = "", ""
        rescaling = _requantization(node, graph, names)
        if isinstance(node, QuantizedConvolution):
            tensors = ", ".join(_tensor(graph, c, names[c]) for c in "XWY")
            window = ", ".join(braces(v) for v in node.window(node.spatial(graph)))
            rest = f"daceopt::Window{{{window}}}, {extent(node.group)}{weights}"
            return f"{declared}daceopt::onednn_quantized_convolution({tensors}, {rescaling}, {rest});"
        lead = len(graph.shape(names["W"])) - 2
        tensors = ", ".join(_matrices(graph, c, names[c], lead) for c in "XWY")
        return f"{declared}daceopt::onednn_quantized_product({tensors}, {rescaling}{weights});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        return self.support("onednn_quantized.cpp", "onednn_weights.cpp", header="quantized.h")


def _why_not_weights(node: DenseNode, graph: Graph, name: str) -> str | None:
    if not graph.is_contiguous(name):
        return f"weights {name} are not contiguous (strides {graph.strides(name)})"
    if is_constant(graph, name) and graph.dtype(name) == dace.int8:
        return None
    if isinstance(node, QuantizedProduct):
        return None
    return f"weights {name} are no constant of int8"


def _why_not_layout(node: DenseNode, graph: Graph, names: dict[str, str]) -> str | None:
    if isinstance(node, QuantizedConvolution):
        return onednn.why_not_strides(graph, {c: names[c] for c in "XY"})
    loose = next((names[c] for c in "XY" if not graph.is_contiguous(names[c])), None)
    return None if loose is None else f"{loose} is not contiguous (strides {graph.strides(loose)})"


def _requantization(node: QuantizedConvolution | QuantizedProduct, graph: Graph, names: dict[str, str]) -> str:
    dtype = graph.dtype(names["Y"])
    closely = dtype in BYTES and clamps(node, dtype)
    low, high = bounds(node, dtype) if closely else (0, 0)
    shift = "B" if "B" in names else "nullptr"
    count, zeros = extent(graph.size(names["S"])), f"{node.zero_x}, {getattr(node, 'zero_w', 0)}, {node.zero_y}"
    return f"daceopt::Requantization{{S, {shift}, {count}, {zeros}, {boolean(closely)}, {low}, {high}}}"


def _tensor(graph: Graph, connector: str, name: str) -> str:
    layout = f"{braces(graph.shape(name))}, {braces(graph.strides(name))}"
    return f"daceopt::Tensor{{(void*)({connector}), {layout}, {element(graph.dtype(name))}}}"


def _matrices(graph: Graph, connector: str, name: str, lead: int) -> str:
    """A batch over the first ``lead`` dimensions, where there are some; rows over those between and the last one."""
    shape = graph.shape(name)
    batch = (sympy.Mul(*shape[:lead]),) if lead else ()
    dims = tuple(map(dim, (*batch, sympy.Mul(*shape[lead:-1]), shape[-1])))
    layout = f"{braces(dims)}, {braces(row_major(dims))}"
    return f"daceopt::Tensor{{(void*)({connector}), {layout}, {element(graph.dtype(name))}}}"


register(OneDnnQuantized())
