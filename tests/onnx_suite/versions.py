"""The suite's models of one operator in every version of that operator, with attributes left out and set otherwise.

A case is right when the float64 reference and the lowering both agree with ONNX Runtime, or when it is known that ONNX
Runtime stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from daceopt.capture.onnx.importer import sizing_operands
from tests.onnx_suite.bases import CHANCE, Base, bases, formals

Feeds = dict[str, np.ndarray]
_LARGEST = 1500  # elements of a case's inputs: the interpreter runs in Python
_MODELS = 12  # of an operator, to which attributes are set
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
_OLDEST_IR, _NEWEST_IR = 8, 10

_FLAGS = (
    "align_corners antialias ceil_mode count_include_pad exclude_outside exclusive fmod inverse keepdims largest "
    "linear_before_reset noop_with_empty_axes onesided reverse select_last_index storage_order transA transB upper"
).split()
_SETTINGS: dict[str, Sequence[Any]] = dict.fromkeys(_FLAGS, (0, 1)) | {
    "alpha": [0.5],
    "approximate": ["none", "tanh"],
    "auto_pad": ["SAME_UPPER", "SAME_LOWER", "VALID"],
    "axis": [-1, 0, 1, 2, 3],
    "batch_dims": [0, 1],
    "beta": [0.25],
    "clip": [0.4],
    "coordinate_transformation_mode": ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"],
    "cubic_coeff_a": [-0.5],
    "epsilon": [0.1],
    "gamma": [1.3],
    "is_causal": [0, 1],
    "lambd": [0.7],
    "nearest_mode": ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"],
    "p": [1, 2, 3],
    "padding_mode": ["zeros", "border", "reflection"],
    "size": [3, 5],
    "softcap": [0.7],
}
_OF_OPERATOR: dict[tuple[str, str], Sequence[Any]] = {
    (op, "reduction"): ["none", "sum", "mean"] for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
}
_OF_OPERATOR |= {(op, "reduction"): ["none", "add", "mul", "max", "min"] for op in ("ScatterElements", "ScatterND")}
_OF_OPERATOR |= {
    ("DepthToSpace", "mode"): ["DCR", "CRD"],
    ("GridSample", "mode"): ["bilinear", "bicubic", "linear", "cubic", "nearest"],
    ("Pad", "mode"): ["constant", "reflect", "edge", "wrap"],
    ("Resize", "mode"): ["nearest", "linear", "cubic"],
    ("RoiAlign", "mode"): ["avg", "max"],
    ("Upsample", "mode"): ["nearest", "linear"],
}


@dataclass(frozen=True)
class VersionCase:
    """A model of one operator, declared at the version in which that form of the operator came."""

    name: str
    model: onnx.ModelProto
    feeds: Feeds


def operators() -> list[str]:
    """Those that have several versions or several settings, and a deterministic result."""
    return sorted(op for op in bases() if op not in CHANCE and op in _schemas())


def cases(op_type: str) -> Iterator[VersionCase]:
    """All of an operator: each model in each version that can say it, as it is and in other settings."""
    small = [b for b in bases()[op_type] if _size(b) <= _LARGEST] or bases()[op_type][:1]
    for since, schema in sorted(_schemas()[op_type].items()):
        for position, base in enumerate(small):
            found = _at(base, schema)
            if found is None:
                continue
            name = f"{op_type}-{since}/{base.name}"
            yield VersionCase(name, *found)
            variants = [*_without(found[0], schema), *(_set(found[0], schema) if position < _MODELS else ())]
            yield from (VersionCase(f"{name}/{what}", model, found[1]) for what, model in variants)


def _size(base: Base) -> int:
    return sum(np.size(v) for v in base.inputs if v is not None)


@cache
def _schemas() -> dict[str, dict[int, Any]]:
    found: dict[str, dict[int, Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            found.setdefault(schema.name, {})[schema.since_version] = schema
    return found


def _at(base: Base, schema: Any) -> tuple[onnx.ModelProto, Feeds] | None:
    """The model at an older version; None where that cannot say the same. What is an input of the newest version may be
    an attribute there; inputs that are scalars or lists of integers are constants."""
    values = dict(zip((v.name for v in base.model.graph.input), base.inputs, strict=True))
    node = _node_at(base, schema, values)
    if node is None or any(values.get(n) is None for n in node.input if n):
        return None
    kept = [v for v in base.model.graph.input if v.name in node.input]
    fixed = {v.name for v in kept[1:] if _is_setting(np.asarray(values[v.name]))} | set(sizing_operands(node))
    constants = [numpy_helper.from_array(np.asarray(values[n]), n) for n in sorted(fixed)]
    inputs = [v for v in kept if v.name not in fixed]
    graph = helper.make_graph([node], "one", inputs, base.model.graph.output, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", schema.since_version)])
    model.ir_version = _OLDEST_IR if schema.since_version < 14 else _NEWEST_IR
    return model, {v.name: np.asarray(values[v.name]) for v in inputs}


def _is_setting(value: np.ndarray) -> bool:
    return value.ndim == 0 or (value.dtype.kind in "biu" and value.ndim == 1)


def _node_at(base: Base, schema: Any, values: dict[str, Any]) -> onnx.NodeProto | None:
    node, newest = base.node, _schemas()[base.node.op_type][max(_schemas()[base.node.op_type])]
    attributes = [a for a in node.attribute if a.name in schema.attributes]
    outputs = schema.outputs and (len(schema.outputs) >= len(node.output) or schema.outputs[-1].option == _VARIADIC)
    if len(attributes) < len(node.attribute) or not outputs:
        return None
    names = []
    for name, formal in formals(newest.inputs, [n or "" for n in node.input]).items():
        if formal.name in schema.attributes and values.get(name) is not None:
            made = _attribute(schema.attributes[formal.name], np.asarray(values[name]))
            attributes += [made] if made is not None else []
        elif len(names) < len(schema.inputs) or (schema.inputs and schema.inputs[-1].option == _VARIADIC):
            names.append(name)
        else:
            return None
    made = helper.make_node(node.op_type, names if "" not in node.input else list(node.input), node.output)
    made.attribute.extend(attributes)
    return made


def _attribute(formal: Any, value: np.ndarray) -> AttributeProto | None:
    """``value`` of a newer version's input as an attribute; None for an empty one, which is the same as none."""
    kind = formal.type.name
    flat = [float(v) if kind.startswith("FLOAT") else int(v) for v in value.reshape(-1)]
    if not flat:
        return None
    return helper.make_attribute(formal.name, flat if kind.endswith("S") else flat[0])


def _without(model: onnx.ModelProto, schema: Any) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model with one attribute less each, whose default holds then."""
    for attribute in model.graph.node[0].attribute:
        if not schema.attributes[attribute.name].required:
            yield f"without {attribute.name}", _edited(model, {attribute.name})


def _set(model: onnx.ModelProto, schema: Any) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model with one attribute set otherwise each."""
    node = model.graph.node[0]
    for name in sorted(schema.attributes):
        values = _OF_OPERATOR.get((node.op_type, name), _SETTINGS.get(name, ()))
        for value in values:
            gone = {name, "pads"} if name == "auto_pad" else {name}
            yield f"{name}={value}", _edited(model, gone, name, value)
    if "output_padding" in schema.attributes:
        rank = next((len(a.ints) for a in node.attribute if a.name == "strides"), 0)
        for value in _SETTINGS["auto_pad"] if rank else ():
            padded = _edited(model, {"output_padding", "output_shape"}, "output_padding", [1] * rank)
            yield f"output_padding, auto_pad={value}", _edited(padded, {"auto_pad", "pads"}, "auto_pad", value)


def _edited(model: onnx.ModelProto, gone: set[str], name: str = "", value: Any = None) -> onnx.ModelProto:
    """A copy with these attributes of its node gone, one set, and results of unknown shape."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    node = made.graph.node[0]
    kept = [a for a in model.graph.node[0].attribute if a.name not in gone]
    del node.attribute[:]
    node.attribute.extend(kept + ([helper.make_attribute(name, value)] if name else []))
    for result in made.graph.output:
        result.type.tensor_type.ClearField("shape")
    return made
