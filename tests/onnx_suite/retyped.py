"""The suite's models of an operator with other element types: each that the schema allows for its main operand."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from daceopt.capture.onnx.importer import sizing_operands
from daceopt.ir.graph.operator import schema_of
from daceopt.ir.scalar import types
from daceopt.ops.core import operator_table
from tests.onnx_suite import isolated
from tests.onnx_suite.bases import CHANCE, Base, base, bases, formals

PREFIX = "types"
# ONNX Runtime computes some things of float64 in float32.
_ROUNDING = {"float32": 1e-5, "float64": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def names(op_type: str, models: int = 1) -> list[str]:
    """``types/model/type``: each element type that the operator's schema allows, in so many of its models."""
    found = bases().get(op_type, [])
    allowed = operator_table.allowed_types(op_type)
    return [
        f"{PREFIX}/{found[(k + m) % len(found)].name}/{types.name_of(t)}"
        for k, t in enumerate(allowed)
        for m in range(min(models, len(found)))
    ]


# ONNX Runtime interpolates cubically over float16 otherwise than over float32 and than the reference evaluator.
_MISJUDGED = frozenset([("Resize", "float16")])
_KEPT = frozenset(["rois"])  # coordinates


class Retyped:
    """A case (see ``cases.Case``) made from a base and the name of an element type."""

    kind = "node"

    def __init__(self, name: str):
        self.name = name
        _, origin, kind = name.split("/")
        self._base = base(origin)
        self._dtype = types.from_name(kind)
        rounding = _ROUNDING.get(kind, 0.13 if types.is_float(self._dtype) else 1e-5)
        self._rounding = rounding

    @property
    def tolerances(self) -> tuple[float, float]:
        """Relative, and absolute beside the largest value: sums cancel, and ONNX Runtime's do not less so."""
        return self._rounding, self._rounding * isolated.largest(self._expected)

    @cached_property
    def model(self) -> onnx.ModelProto:
        return _retyped(self._base, types.to_onnx(self._dtype))

    @cached_property
    def inputs(self) -> list[Any]:
        kept = {*sizing_operands(self._base.node), *self._coordinates()}
        given = zip(self._base.model.graph.input, self.model.graph.input, self._base.inputs, strict=True)
        return [
            value if old.type == new.type else _valued(np.asarray(value), self._dtype, old.name in kept)
            for old, new, value in given
        ]

    def _coordinates(self) -> list[str]:
        node = self._base.node
        schema = schema_of(node.op_type)
        return [name for name, formal in formals(schema.inputs, node.input).items() if formal.name in _KEPT]

    @cached_property
    def _expected(self) -> list[Any] | None:
        op_type = self._base.node.op_type
        if op_type in CHANCE or (op_type, types.name_of(self._dtype)) in _MISJUDGED:
            return None
        return isolated.results(self.model, self.inputs)

    def data(self) -> list[tuple[list[Any], list[Any] | None]]:
        """The expected results are ONNX Runtime's; None where it has none, or where chance decides."""
        return [(self.inputs, self._expected)]


def _retyped(origin: Base, elem_type: int) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(origin.model)
    node = made.graph.node[0]
    schema = schema_of(node.op_type)
    variable = operator_table.main_operand(schema).type_str
    if any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        _retype_everywhere(made.graph, elem_type)
        return made
    values = {v.name: v for v in (*made.graph.input, *made.graph.output)}
    operands = {**formals(schema.inputs, node.input), **formals(schema.outputs, node.output)}
    for name, formal in operands.items():
        if formal.type_str == variable:
            values[name].type.tensor_type.elem_type = elem_type
    if any(f.type_str == variable for f in schema.outputs):
        _retype_attributes(node, schema, elem_type)
    return made


def _retype_attributes(node: onnx.NodeProto, schema: Any, elem_type: int) -> None:
    for attribute in node.attribute:
        if attribute.name in ("dtype", "output_dtype"):
            attribute.i = elem_type
        elif attribute.name == "value" and attribute.HasField("t"):
            array = numpy_helper.to_array(attribute.t)
            attribute.t.CopyFrom(numpy_helper.from_array(_valued(array, types.from_onnx(elem_type), False)))
    missing = {"dtype", "output_dtype"} & set(schema.attributes) - {a.name for a in node.attribute}
    node.attribute.extend(onnx.helper.make_attribute(name, elem_type) for name in missing)


def _retype_everywhere(graph: onnx.GraphProto, elem_type: int) -> None:
    """Control flow: all that is of float32, in bodies too."""
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = elem_type
    for body in (a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
        _retype_everywhere(body, elem_type)


def _valued(array: np.ndarray, dtype: types.DType, keep: bool) -> np.ndarray:
    """Small whole numbers in place of the values; never zero, which integers are not divided by."""
    target = types.to_numpy(dtype)
    if keep:
        return array.astype(target)
    signs = np.sign(np.nan_to_num(np.asarray(array, np.float64)))
    signed = signs * (1 + np.arange(array.size).reshape(array.shape) % 3)
    values = np.where(signed == 0, 1, signed)
    if types.is_bool(dtype):
        return values > 0
    name = types.name_of(dtype)
    if name in ("float8_e8m0fnu", "uint2", "int2"):
        return np.where(np.abs(values) > 1, 2 if name[0] == "f" else 1, 1).astype(target)
    return (np.abs(values) if target.kind == "u" or name.startswith("u") else values).astype(target)
