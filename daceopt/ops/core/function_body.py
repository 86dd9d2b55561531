"""Progressive lowering by the standard itself: an operator becomes the operators of its schema's function body."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import sympy

from daceopt.errors import NotKnownYet, Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import Operator, schema_of
from daceopt.ir.nodes.builder import Builder
from daceopt.ops.core import registry, values
from daceopt.ops.core.onnx_nodes import declare_operands, import_node, value_info


def exists(op_type: str, domain: str, version: int | None) -> bool:
    """Does the schema have a function body whose operators, as far as they are fixed, are supported?"""
    schema = schema_of(op_type, domain, version)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return False
    inner = {n.op_type for n in schema.function_body.node} if schema.has_function else set()
    return all(registry.is_supported(name) for name in inner - {op_type, "Constant"})


def why_unsupported(graph: Graph, node: Operator) -> str | None:
    """The reason for which this node's body cannot take its place."""
    try:
        body = _inline(graph, node, graph.inputs_of(node), graph.outputs_of(node))
        trial = declare_operands(graph, graph.inputs_of(node), graph.outputs_of(node))
        _import_body(Builder(trial[0]), body, *trial[1:])
    except NotKnownYet as error:
        present = [
            k for k, name in enumerate(graph.inputs_of(node)) if name is not None and name not in graph.constants
        ]
        return values.UnknownValue.at(f"function body of {node.op_type}: {error}", *present)
    except Unsupported as error:
        return f"function body of {node.op_type}: {error}"
    return None


def lower(b: Builder, node: Operator, inputs: list[str | None], outputs: list[str | None]) -> None:
    """Replace ``node``, which is no longer in the graph, by its body's operators."""
    _import_body(b, _inline(b.graph, node, inputs, outputs), inputs, outputs)


def _inline(graph: Graph, node: Operator, inputs: list[str | None], outputs: list[str | None]) -> Any:
    """A shape-inferred model that holds the body; operands are called ``in0, ...`` and ``out0, ...``."""
    import onnx
    from onnx import helper, inliner, numpy_helper, shape_inference

    attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in node.attributes.items()}
    call = helper.make_node(
        node.op_type, _labels("in", inputs), _labels("out", outputs), domain=node.domain, **attributes
    )
    values = [value_info(f"in{k}", graph, n) for k, n in enumerate(inputs) if n is not None]
    results = [value_info(f"out{k}", graph, n) for k, n in enumerate(outputs) if n is not None]
    constants = [
        numpy_helper.from_array(graph.constants[n], f"in{k}") for k, n in enumerate(inputs) if n in graph.constants
    ]
    versions = {"": graph.source.opset.get("", onnx.defs.onnx_opset_version())}
    versions[node.domain] = max(node.since_version, graph.source.opset.get(node.domain, 0))
    model = helper.make_model(
        helper.make_graph([call], "body", values, results, constants),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in versions.items()],
    )
    try:
        if "" in call.input and _add_function(model, call):
            body = inliner.inline_local_functions(model)
        else:
            body = inliner.inline_selected_functions(model, [(node.domain, node.op_type)], inline_schema_functions=True)
    except RuntimeError as error:  # assertions of the inliner about types
        raise Unsupported(f"it cannot be inlined: {error}") from error
    if any(n.op_type == node.op_type for n in body.graph.node):
        raise Unsupported(f"no body for opset {versions[node.domain]}")
    try:
        return shape_inference.infer_shapes(body, data_prop=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        raise Unsupported(f"shapes cannot be inferred: {error}") from error


def _add_function(model: onnx.ModelProto, call: onnx.NodeProto) -> bool:
    """Make a body that depends on types a function of the model: the inliner stumbles over absent inputs there."""
    import onnx

    schema = schema_of(call.op_type, call.domain, max(o.version for o in model.opset_import if o.domain == call.domain))
    if schema is None or not schema.has_context_dependent_function:
        return False
    types_of = {v.name: v.type for v in model.graph.input}
    operands = [types_of.get(name, onnx.TypeProto()).SerializeToString() for name in call.input]
    text = schema.get_context_dependent_function(call.SerializeToString(), operands)
    model.functions.append(onnx.FunctionProto.FromString(text))
    return True


def _labels(stem: str, names: list[str | None]) -> list[str]:
    return ["" if n is None else f"{stem}{k}" for k, n in enumerate(names)]


def _import_body(b: Builder, body: onnx.GraphProto, inputs: list[str | None], outputs: list[str | None]) -> None:
    arrays: dict[str, str] = {}
    for stem, names in (("in", inputs), ("out", outputs)):
        arrays |= {f"{stem}{k}": n for k, n in enumerate(names) if n is not None}
    inferred = {v.name: v.type.tensor_type for v in (*body.graph.value_info, *body.graph.output)}
    symbols = _size_symbols(b.graph, list(arrays.values()))
    for proto in body.graph.node:
        import_node(b, proto, arrays, inferred, symbols)


def _size_symbols(graph: Graph, names: list[str]) -> dict[str, sympy.Symbol]:
    extents = [e for n in names for e in graph.shape(n) if not isinstance(e, int)]
    return {str(s): s for e in extents for s in e.free_symbols}


registry.provide_bodies(sys.modules[__name__])
