"""Nodes of ONNX graphs, inside of operators or of function bodies, join a graph of ours as operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from math import prod
from typing import Any

import numpy as np
import onnx
import sympy

from daceopt.errors import NotKnownYet, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.extents import parse
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import inference, registry, subgraph, values, widening

_ITERATIONS = 4096  # of which an extent is looked at one by one
_SMALL = 1024  # elements of constants that shape inference may look at

Expansion = Callable[
    [Builder, "onnx.NodeProto", "list[str | None]", "dict[str, Any]", "list[str | None]"], "list[str | None]"
]
_REGIONS: list[Expansion] = []


def expands_regions(expansion: Expansion) -> Expansion:
    """Register what lowers a node with graphs: their nodes are added by this module in their turn.

    ``(builder, ONNX node, inputs, attributes, results)``: arrays for the results, None where there is none yet; returns
    them all.
    """
    _REGIONS[:] = [expansion]
    return expansion


def add(b: Builder, proto: onnx.GraphProto, arrays: Mapping[str, str]) -> list[str]:
    """Add the nodes of an ONNX graph, whose inputs and free names are ``arrays``; returns the arrays of its outputs.

    Raises Unsupported when a shape cannot be inferred or an operator cannot be lowered.
    """
    names = dict(arrays)
    for tensor in proto.initializer:
        names[tensor.name] = b.graph.add_constant(tensor.name, _array(tensor))
    if proto.sparse_initializer:
        raise Unsupported(f"graph {proto.name!r} has sparse constants")
    inferred = _infer(b.graph, proto, names)
    symbols = {str(s): s for s in _symbols(b.graph)}
    for node in proto.node:
        import_node(b, node, names, inferred, symbols)
    missing = [v.name for v in proto.output if v.name not in names]
    if missing:
        raise Unsupported(f"graph {proto.name!r} returns {missing[0]!r}, which nothing defines")
    return [names[v.name] for v in proto.output]


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    from onnx import numpy_helper

    value = numpy_helper.to_array(tensor)
    if value.dtype.kind in "OSU":
        raise Unsupported(f"constant {tensor.name!r} has type {value.dtype}, which has no native form")
    return value


def _symbols(graph: Graph) -> Iterator[Any]:
    for name in graph.arrays():
        for extent in graph.shape(name):
            if not isinstance(extent, int):
                yield from extent.free_symbols


def _infer(graph: Graph, proto: onnx.GraphProto, arrays: Mapping[str, str]) -> dict[str, onnx.TypeProto.Tensor]:
    """Types of all values of an ONNX graph, given those of the arrays that it reads."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    own = {t.name for t in proto.initializer}
    inputs = [value_info(n, graph, a) for n, a in arrays.items() if n not in own]
    constants = [
        numpy_helper.from_array(graph.constants[a], n)
        for n, a in arrays.items()
        if n not in own and a in graph.constants and graph.constants[a].size <= _SMALL
    ]
    outputs = [onnx.ValueInfoProto(name=v.name) for v in proto.output]
    copied = helper.make_graph(proto.node, "body", inputs, outputs, [*proto.initializer, *constants])
    opsets = [helper.make_opsetid(domain, version) for domain, version in graph.source.opset.items()]
    model = helper.make_model(copied, opset_imports=opsets or None)
    try:
        typed_model = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError) as error:
        raise Unsupported(f"shapes of graph {proto.name!r} cannot be inferred: {error}") from error
    declared = {v.name: v.type.tensor_type for v in (*proto.value_info, *proto.output)}
    return declared | {v.name: v.type.tensor_type for v in (*typed_model.graph.value_info, *typed_model.graph.output)}


def trial(
    graph: Graph, inputs: Sequence[str | None], outputs: Sequence[str | None]
) -> tuple[Graph, list[str | None], list[str | None]]:
    """A graph of nothing but arrays like these operands, in which a lowering may be tried."""
    graph_of_trial, read, written = declare_operands(graph, inputs, outputs)
    for name, own in zip(inputs, read):
        if name is not None and own is not None and types.is_integer(graph.dtype(name)) and name not in graph.constants:
            elements = values.known_elements(graph, name)
            if elements is not None:
                graph_of_trial.source.shape_values[own] = elements
    graph_of_trial.size_names |= graph.size_names
    return graph_of_trial, read, written


def declare_operands(
    graph: Graph, inputs: Sequence[str | None], outputs: Sequence[str | None]
) -> tuple[Graph, list[str | None], list[str | None]]:
    """A scratch graph with arrays like these operands of a node, in which its lowering is tried."""
    trial = Graph("trial")
    trial.source.opset = dict(graph.source.opset)

    def declare(name: str | None) -> str | None:
        if name is None:
            return None
        if name in graph.constants:
            return trial.add_constant("constant", graph.constants[name])
        return trial.add_array("operand", graph.shape(name), graph.dtype(name))

    return trial, [declare(n) for n in inputs], [declare(n) for n in outputs]


def value_info(label: str, graph: Graph, name: str) -> onnx.ValueInfoProto:
    """The ONNX type of an array, called ``label``."""
    from onnx import helper

    extents = [e if isinstance(e, int) else str(e) for e in graph.shape(name)]
    return helper.make_tensor_value_info(label, types.to_onnx(graph.dtype(name)), extents)


def import_node(
    b: Builder,
    proto: onnx.NodeProto,
    arrays: dict[str, str],
    inferred: dict[str, onnx.TypeProto.Tensor],
    symbols: dict[str, sympy.Symbol],
) -> None:
    """Add an ONNX node that reads ``arrays`` (ONNX name -> array) and note its results there.

    ``inferred``: types by ONNX name; ``symbols``: sizes by the names that these use. Graphs inside become regions at
    once. Raises Unsupported for what cannot be lowered.
    """
    from onnx import helper

    attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    if proto.op_type == "Constant":
        node = registry.make("Constant", "", 0, 1, attributes)
        arrays[proto.output[0]] = b.constant(registry.constant_value(node.attributes))
        return
    captured = subgraph.captures(proto)
    attributes |= {"captures": captured} if captured else {}
    undefined = [n for n in (*proto.input, *captured) if n and n not in arrays]
    if undefined:
        raise Unsupported(f"{proto.op_type} reads {undefined[0]!r}, which nothing before it defines")
    read = [arrays[n] if n else None for n in (*proto.input, *captured)]
    if subgraph.graphs_of(proto):
        _import_region(b, proto, read, attributes, arrays, inferred, symbols)
        return
    for k, name in enumerate(proto.output):
        if name and name not in arrays:
            shape = _result_shape(b.graph, proto, k, read, attributes, inferred, symbols)
            arrays[name] = b.graph.add_array(b.label, shape, _dtype(inferred[name]))
    written = [arrays[n] if n else None for n in proto.output]
    operator = widening.add_operator(b.graph, proto.op_type, read, written, attributes, proto.domain)
    reason = registry.why_unsupported(b.graph, operator)
    if reason is not None:
        raise NotKnownYet(reason) if isinstance(reason, values.UnknownValue) else Unsupported(reason)


def _import_region(
    b: Builder,
    proto: onnx.NodeProto,
    read: list[str | None],
    attributes: dict[str, Any],
    arrays: dict[str, str],
    inferred: dict[str, onnx.TypeProto.Tensor],
    symbols: dict[str, sympy.Symbol],
) -> None:
    """Expand a node with graphs; what inference does not know of its results follows from them."""
    captured: list[str | None] = []
    for name in proto.output:
        if name and name not in arrays:
            with suppress(Unsupported):
                shape = extents(name, inferred.get(name), symbols)
                arrays[name] = b.graph.add_array(b.label, shape, _dtype(inferred[name]))
        captured.append(arrays.get(name))
    results = _REGIONS[0](b, proto, read, attributes, captured)
    arrays.update((n, array) for n, array in zip(proto.output, results) if n and array is not None)


def _result_shape(
    graph: Graph,
    proto: onnx.NodeProto,
    position: int,
    read: list[str | None],
    attributes: dict[str, Any],
    inferred: dict[str, onnx.TypeProto.Tensor],
    symbols: dict[str, sympy.Symbol],
) -> Sequence[Dim]:
    """The inferred shape; where that is open, what follows from the arrays that are read."""
    name = proto.output[position]
    try:
        return extents(name, inferred.get(name), symbols)
    except Unsupported:
        shapes = inference.result_shapes(graph, proto.op_type, read, len(proto.output), attributes, proto.domain)
        shape = shapes[position]
        if name not in inferred or shape is None:
            raise
        return [_steady(graph, e) for e in shape]


def _steady(graph: Graph, extent: Dim) -> Dim:
    """An extent that has one value in all iterations of the loops around, as that value."""
    counters = [] if isinstance(extent, int) else [s for s in extent.free_symbols if str(s) in graph.source.trips]
    ranges = [range(graph.source.trips[str(s)]) for s in counters]
    if not counters or isinstance(extent, int) or prod(len(r) for r in ranges) > _ITERATIONS:
        return extent
    extents = {dim(extent.subs(dict(zip(counters, at)))) for at in product(*ranges)}
    return extents.pop() if len(extents) == 1 else extent


def _dtype(tensor: onnx.TypeProto.Tensor) -> DType:
    return types.from_onnx(tensor.elem_type)


def extents(name: str, tensor: onnx.TypeProto.Tensor | None, symbols: dict[str, sympy.Symbol]) -> list[Dim]:
    """The shape of an inferred type. Raises Unsupported where it is not known over ``symbols``."""
    if tensor is None or not tensor.HasField("shape"):
        raise NotKnownYet(f"the shape of {name} is not known before running")
    return [_extent(name, d, symbols) for d in tensor.shape.dim]


def _extent(name: str, proto: onnx.TensorShapeProto.Dimension, symbols: dict[str, sympy.Symbol]) -> Dim:
    def is_known(text: str) -> Any:
        if text not in symbols:
            raise NotKnownYet(f"a dimension of {name} is not known before running")
        return symbols[text]

    if not proto.dim_param and not proto.HasField("dim_value"):
        raise NotKnownYet(f"a dimension of {name} is not known before running")
    return parse(proto.dim_param, is_known) if proto.dim_param else int(proto.dim_value)
