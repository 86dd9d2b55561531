"""Fold a point-wise kernel into the product or convolution that feeds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import sympy
from dace import nodes

from daceopt.errors import Unsupported
from daceopt.ir import scalar
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Access, Kernel, Stage
from daceopt.ir.nodes.library import Contraction, Convolution
from daceopt.ir.relations import Flow, Relation, flow
from daceopt.ops.families.strided import takes
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class _Epilogue:
    """What a kernel computes from the product ``y``: ``activation(y + bias + residual)``; array names or None."""

    bias: str | None = None
    residual: str | None = None
    activation: str | None = None


@dataclass(frozen=True)
class EpilogueFusion(Transformation):
    """Let a library node add the bias and the residual and apply the activation itself.

    before:  y = Convolution(x, w)     for n,c,h,w: z[n,c,h,w] = y[n,c,h,w] + b[c] + r[n,c,h,w]
    after:   z = Convolution(x, w, B=b, Z=r)

    before:  y = Contraction(A, B)     for i,j: z[i,j] = maximum(y[i,j] + b[j], 0)
    after:   z = Contraction(A, B, Bias=b, activation=relu)

    Only when nothing else reads the product and the kernel is nothing but the epilogue; larger kernels keep it, where
    it costs no pass over memory. Convolutions keep no relu: oneDNN's turns NaN into 0.
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not is_product(node):
            return
        product = graph.writes(node)["Y"]
        readers = graph.all_consumers(product)
        if len(readers) != 1 or graph.is_kept(product) or not isinstance(readers[0], nodes.MapEntry):
            return
        try:
            found = _epilogue(graph, node, Kernel.extract(graph, readers[0]))
        except Unsupported as error:
            found = str(error)
        if isinstance(found, str):
            yield NearMiss(node, found)
        else:
            yield Site(graph, (node, readers[0]), {"epilogue": found, "out": graph.outputs_of(readers[0])[0]})

    def apply(self, site: Site) -> None:
        graph, node, epilogue = site.graph, site.nodes[0], site["epilogue"]
        reads, attributes = graph.reads(node), {p: getattr(node, p) for p in _attributes(node)}
        bias, residual = _connectors(node)
        reads |= {c: a for c, a in ((bias, epilogue.bias), (residual, epilogue.residual)) if a is not None}
        attributes["activation"] = epilogue.activation
        graph.take_out(site.nodes)
        graph.add_node(
            type(node)(node.label, inputs=list(reads), outputs=["Y"], **attributes), reads, {"Y": site["out"]}
        )


def _attributes(node: Any) -> tuple[str, ...]:
    return ("alpha",) if isinstance(node, Contraction) else ("strides", "pads", "dilations", "group", "layout")


def _connectors(node: Any) -> tuple[str, str]:
    return ("Bias", "C") if isinstance(node, Contraction) else ("B", "Z")


def is_product(node: Any) -> bool:
    """May ``node`` get an epilogue?"""
    return isinstance(node, (Contraction, Convolution)) and node.activation is None


def why_no_epilogue(graph: Graph, node: Any, kernel: Kernel) -> str | None:
    """Why ``node`` cannot do what ``kernel``, the only reader of its product, does; the kernel may be a planned one."""
    found = _epilogue(graph, node, kernel)
    return found if isinstance(found, str) else None


def _epilogue(graph: Graph, node: Any, kernel: Kernel) -> _Epilogue | str:
    product = graph.writes(node)["Y"]
    if graph.views_of(product):
        return "the product is read through a view"
    if len(kernel.stages) != 1 or len(kernel.stages[0].writes) != 1:
        return "the reader has several stages or results"
    stage = kernel.stages[0]
    write = next(iter(stage.writes.values()))
    if graph.is_part(write.array) and not takes(node, graph.shape(write.array), graph.strides(write.array)):
        return f"{write.array} is a part with other strides than {node.label} writes"
    ways = {c: _flow(graph, kernel, a, write) for c, a in stage.reads.items()}
    own = [ways[c] for c, a in stage.reads.items() if a.array == product]
    if write.wcr or graph.dtype(write.array) != graph.dtype(product) or len(own) != 1 or not own[0].is_equal:
        return "the reader reduces, converts or reorders the product"
    return _match_stage(graph, node, product, stage, ways)


def _flow(graph: Graph, kernel: Kernel, read: Access, write: Access) -> Flow:
    return flow(kernel.extents, read.index, graph.shape(read.array), write.index, graph.shape(write.array))


def _match_stage(graph: Graph, node: Any, product: str, stage: Stage, ways: Mapping[str, Flow]) -> _Epilogue | str:
    types = [a.dtype for a in stage.assignments] + [graph.dtype(a.array) for a in stage.reads.values()]
    if any(t != graph.dtype(product) for t in types):
        return "the reader mixes element types"
    value = _inline(stage)
    product_symbol = next(c for c, a in stage.reads.items() if a.array == product)
    argument = _relu_argument(value)
    activation = None if argument is None else "relu"
    if activation and isinstance(node, Convolution):
        return "a relu inside of the convolution would turn NaN into 0"
    value = value if argument is None else argument
    terms = {str(t): t for t in sympy.Add.make_args(value)}
    if product_symbol not in terms or any(n not in stage.reads for n in terms):
        return "the reader is not a sum of the product and other arrays"
    del terms[product_symbol]
    bias, residual = None, None
    held = graph.reads(node)
    for conn in terms:
        access = stage.reads[conn]
        if bias is None and _connectors(node)[0] not in held and _is_bias(graph, node, access.array, ways[conn]):
            bias = access.array
        elif residual is None and _connectors(node)[1] not in held and ways[conn].is_equal:
            residual = access.array
        else:
            return f"{access.array} is neither a bias nor a residual"
    return _Epilogue(bias, residual, activation)


def _inline(stage: Stage) -> Any:
    """The stage's result as one expression of its read symbols."""
    values: dict[Any, Any] = {}
    for assignment in stage.assignments:
        values[assignment.symbol] = assignment.expr.xreplace(values)
    return next(v for s, v in values.items() if str(s) in stage.writes)


def _relu_argument(value: Any) -> Any:
    """v where ``value`` is max(v, 0) in a form that keeps NaN, else None."""
    if isinstance(value, scalar.maximum) and 0 in value.args:
        return next((v for v in value.args if v != 0), None)
    if isinstance(value, scalar.select) and isinstance(value.args[0], (scalar.le, scalar.lt)):
        condition, zero, v = value.args
        return v if zero == 0 and condition.args == (v, 0) else None
    return None


def _is_bias(graph: Graph, node: Any, array: str, way: Flow) -> bool:
    """A vector along the output's last dimension (product) or channel dimension (convolution)."""
    axis = len(way.out) - 1 if isinstance(node, Contraction) else 1
    return way.dims == (Relation("bijective", axis),) and graph.shape(array) != (1,) and graph.is_contiguous(array)
