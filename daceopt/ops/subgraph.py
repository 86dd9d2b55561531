"""ONNX graphs inside of operators: which outer values they read, and how their nodes join a graph of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ops import function_body, values

_SMALL = 1024  # elements of constants that shape inference may look at


def graphs_of(node: Any) -> list[Any]:
    """The graph attributes of an ONNX node."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]


def captures(node: Any) -> list[str]:
    """The outer values that graphs of an ONNX node read by name, each once."""
    return list(dict.fromkeys(name for g in graphs_of(node) for name in free_names(g)))


def reads(node: Any) -> list[str]:
    """The values that an ONNX node reads, as operands or in graphs of its own; each once."""
    return list(dict.fromkeys(name for name in (*node.input, *captures(node)) if name))


def free_names(graph: Any) -> list[str]:
    """The values that an ONNX graph reads and does not define, graphs inside of it included; each once."""
    defined = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    defined |= {t.values.name for t in graph.sparse_initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        found.update(dict.fromkeys(n for n in (*node.input, *captures(node)) if n and n not in defined))
        defined.update(node.output)
    found.update(dict.fromkeys(v.name for v in graph.output if v.name not in defined))
    return list(found)


def add(b: Builder, proto: Any, arrays: Mapping[str, str]) -> list[str]:
    """Add the nodes of an ONNX graph, whose inputs and free names are ``arrays``; returns the arrays of its outputs.

    Raises Unsupported when a shape cannot be inferred or an operator cannot be lowered.
    """
    known = dict(arrays)
    for tensor in proto.initializer:
        known[tensor.name] = b.graph.add_constant(tensor.name, _array(tensor))
    if proto.sparse_initializer:
        raise Unsupported(f"graph {proto.name!r} has sparse constants")
    inferred = _infer(b.graph, proto, known)
    symbols = {str(s): s for s in _symbols(b.graph)}
    for node in proto.node:
        function_body.import_node(b, node, known, inferred, symbols)
    missing = [v.name for v in proto.output if v.name not in known]
    if missing:
        raise Unsupported(f"graph {proto.name!r} returns {missing[0]!r}, which nothing defines")
    return [known[v.name] for v in proto.output]


def _array(tensor: Any) -> np.ndarray:
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


def _infer(graph: Graph, proto: Any, arrays: Mapping[str, str]) -> dict[str, Any]:
    """Types of all values of an ONNX graph, given those of the arrays that it reads."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    own = {t.name for t in proto.initializer}
    inputs = [function_body.value_info(n, graph, a) for n, a in arrays.items() if n not in own]
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
        done = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError) as error:
        raise Unsupported(f"shapes of graph {proto.name!r} cannot be inferred: {error}") from error
    declared = {v.name: v.type.tensor_type for v in (*proto.value_info, *proto.output)}
    return declared | {v.name: v.type.tensor_type for v in (*done.graph.value_info, *done.graph.output)}


def trial(
    graph: Graph, inputs: Sequence[str | None], outputs: Sequence[str | None]
) -> tuple[Graph, list[str | None], list[str | None]]:
    """A graph of nothing but arrays like these operands, in which a lowering may be tried."""
    made, read, written = function_body.declare_operands(graph, inputs, outputs)
    for name, own in zip(inputs, read):
        if name is not None and own is not None and types.is_integer(graph.dtype(name)) and name not in graph.constants:
            known = values.known(graph, name)
            if known is not None:
                made.source.shape_values[own] = known
    for symbol in graph.sdfg.symbols:
        if symbol not in made.sdfg.symbols:
            made.sdfg.add_symbol(symbol, graph.sdfg.symbols[symbol])
    return made, read, written
