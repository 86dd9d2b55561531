"""Progressive lowering by the standard itself: an operator becomes the operators of its schema's function body."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from math import prod
from typing import Any

import numpy as np

from daceopt.errors import NotKnownYet, Unsupported
from daceopt.ir import types
from daceopt.ir.builder import Builder
from daceopt.ir.extents import parse
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ops import values
from daceopt.ops.operator import Operator, schema_of

_ITERATIONS = 4096  # of which an extent is looked at one by one


def exists(op_type: str, domain: str = "", version: int | None = None) -> bool:
    """Does the schema have a function body whose operators, as far as they are fixed, are supported?"""
    from daceopt.ops import registry

    schema = schema_of(op_type, domain, version)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return False
    inner = {n.op_type for n in schema.function_body.node} if schema.has_function else set()
    return all(registry.supported(name) for name in inner - {op_type, "Constant"})


def why_unsupported(graph: Graph, node: Operator) -> str | None:
    """The reason for which this node's body cannot take its place."""
    try:
        body = _inlined(graph, node, graph.inputs_of(node), graph.outputs_of(node))
        trial = declare_operands(graph, graph.inputs_of(node), graph.outputs_of(node))
        _import_body(Builder(trial[0]), body, *trial[1:])
    except NotKnownYet as error:
        given = [k for k, name in enumerate(graph.inputs_of(node)) if name is not None and name not in graph.constants]
        return values.UnknownValue.at(f"function body of {node.op_type}: {error}", *given)
    except Unsupported as error:
        return f"function body of {node.op_type}: {error}"
    return None


def lower_body(b: Builder, node: Operator, inputs: list[str | None], outputs: list[str | None]) -> None:
    """Replace ``node``, which is no longer in the graph, by its body's operators."""
    _import_body(b, _inlined(b.graph, node, inputs, outputs), inputs, outputs)


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


def _inlined(graph: Graph, node: Operator, inputs: list[str | None], outputs: list[str | None]) -> Any:
    """A shape-inferred model that holds the body; operands are called ``in0, ...`` and ``out0, ...``."""
    import onnx
    from onnx import helper, inliner, numpy_helper, shape_inference

    attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in node.attributes.items()}
    call = helper.make_node(
        node.op_type, _labels("in", inputs), _labels("out", outputs), domain=node.domain, **attributes
    )
    values = [value_info(f"in{k}", graph, n) for k, n in enumerate(inputs) if n is not None]
    results = [value_info(f"out{k}", graph, n) for k, n in enumerate(outputs) if n is not None]
    given = [
        numpy_helper.from_array(graph.constants[n], f"in{k}") for k, n in enumerate(inputs) if n in graph.constants
    ]
    versions = {"": graph.source.opset.get("", onnx.defs.onnx_opset_version())}
    versions[node.domain] = max(node.since_version, graph.source.opset.get(node.domain, 0))
    model = helper.make_model(
        helper.make_graph([call], "body", values, results, given),
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


def _add_function(model: Any, call: Any) -> bool:
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


def value_info(label: str, graph: Graph, name: str) -> Any:
    """The ONNX type of an array, called ``label``."""
    from onnx import helper

    extents = [e if isinstance(e, int) else str(e) for e in graph.shape(name)]
    return helper.make_tensor_value_info(label, types.to_onnx(graph.dtype(name)), extents)


def _import_body(b: Builder, body: Any, inputs: list[str | None], outputs: list[str | None]) -> None:
    arrays: dict[str, str] = {}
    for stem, names in (("in", inputs), ("out", outputs)):
        arrays |= {f"{stem}{k}": n for k, n in enumerate(names) if n is not None}
    inferred = {v.name: v.type.tensor_type for v in (*body.graph.value_info, *body.graph.output)}
    symbols = _size_symbols(b.graph, list(arrays.values()))
    for proto in body.graph.node:
        import_node(b, proto, arrays, inferred, symbols)


def _size_symbols(graph: Graph, names: list[str]) -> dict[str, Any]:
    extents = [e for n in names for e in graph.shape(n) if not isinstance(e, int)]
    return {str(s): s for e in extents for s in e.free_symbols}


def import_node(
    b: Builder, proto: Any, arrays: dict[str, str], inferred: dict[str, Any], symbols: dict[str, Any]
) -> None:
    """Add an ONNX node that reads ``arrays`` (ONNX name -> array) and note its results there.

    ``inferred``: types by ONNX name; ``symbols``: sizes by the names that these use. Graphs inside become regions at
    once. Raises Unsupported for what cannot be lowered.
    """
    from onnx import helper

    from daceopt.ops import registry, subgraph, widening

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
    proto: Any,
    read: list[str | None],
    attributes: dict[str, Any],
    arrays: dict[str, str],
    inferred: dict[str, Any],
    symbols: dict[str, Any],
) -> None:
    """Expand a node with graphs; what inference does not know of its results follows from them."""
    from daceopt.ops import control_flow

    known: list[str | None] = []
    for name in proto.output:
        if name and name not in arrays:
            with suppress(Unsupported):
                shape = extents(name, inferred.get(name), symbols)
                arrays[name] = b.graph.add_array(b.label, shape, _dtype(inferred[name]))
        known.append(arrays.get(name))
    made = control_flow.expand(b, proto, read, attributes, known)
    arrays.update((n, array) for n, array in zip(proto.output, made) if n and array is not None)


def _result_shape(
    graph: Graph,
    proto: Any,
    position: int,
    read: list[str | None],
    attributes: dict[str, Any],
    inferred: dict[str, Any],
    symbols: dict[str, Any],
) -> Sequence[Dim]:
    """The inferred shape; where that is open, what follows from the arrays that are read."""
    from daceopt.ops import inference

    name = proto.output[position]
    try:
        return extents(name, inferred.get(name), symbols)
    except Unsupported:
        found = inference.result_shapes(graph, proto.op_type, read, len(proto.output), attributes, proto.domain)
        shape = found[position]
        if name not in inferred or shape is None:
            raise
        return [_steady(graph, e) for e in shape]


def _steady(graph: Graph, extent: Dim) -> Dim:
    """An extent that has one value in all iterations of the loops around, as that value."""
    counters = [] if isinstance(extent, int) else [s for s in extent.free_symbols if str(s) in graph.source.trips]
    ranges = [range(graph.source.trips[str(s)]) for s in counters]
    if not counters or isinstance(extent, int) or prod(len(r) for r in ranges) > _ITERATIONS:
        return extent
    found = {dim(extent.subs(dict(zip(counters, at)))) for at in product(*ranges)}
    return found.pop() if len(found) == 1 else extent


def _dtype(tensor: Any) -> Any:
    return types.from_onnx(tensor.elem_type)


def extents(name: str, tensor: Any, symbols: dict[str, Any]) -> list[Dim]:
    """The shape of an inferred type. Raises Unsupported where it is not known over ``symbols``."""
    if tensor is None or not tensor.HasField("shape"):
        raise NotKnownYet(f"the shape of {name} is not known before running")
    return [_extent(name, d, symbols) for d in tensor.shape.dim]


def _extent(name: str, proto: Any, symbols: dict[str, Any]) -> Dim:
    def known(text: str) -> Any:
        if text not in symbols:
            raise NotKnownYet(f"a dimension of {name} is not known before running")
        return symbols[text]

    if not proto.dim_param and not proto.HasField("dim_value"):
        raise NotKnownYet(f"a dimension of {name} is not known before running")
    return parse(proto.dim_param, known) if proto.dim_param else int(proto.dim_value)
