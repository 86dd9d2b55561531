"""One operator computed by the reference implementation that comes with ONNX, or by what corrects it: for constants and
interpretation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from daceopt.errors import Unsupported
from daceopt.ir.graph.operator import Operator, schema_of
from daceopt.ops.core.reference_corrections import correction


def compute(node: Operator, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs that ``node`` has (absent ones left out) for ``inputs`` by position.

    Raises Unsupported when the reference has no implementation or refuses the inputs.
    """
    from onnx.reference import ReferenceEvaluator

    schema = schema_of(node.op_type, node.domain, node.since_version)
    if schema is not None and len(node.output_connectors) > schema.max_output:
        raise Unsupported(f"{node.op_type} has outputs that the standard does not know")
    corrected = correction(node)
    if corrected is not None:
        return corrected(node, inputs)
    feeds = {f"i{k}": v for k, v in enumerate(inputs) if v is not None}
    try:
        return [np.asarray(v) for v in ReferenceEvaluator(_model(node, feeds, len(inputs))).run(None, feeds)]
    except Exception as error:
        raise Unsupported(f"{node.op_type} cannot be computed: {type(error).__name__}: {error}") from error


def _model(node: Operator, feeds: dict[str, np.ndarray], count: int) -> onnx.ModelProto:
    """A model of one node, typed, because operators that are defined by a function body need the types."""
    from onnx import helper

    names_in = [f"i{k}" if f"i{k}" in feeds else "" for k in range(count)]
    names_out = [f"o{k}" if c in node.out_connectors else "" for k, c in enumerate(node.output_connectors)]
    proto = helper.make_node(node.op_type, names_in, names_out, domain=node.domain, **_attributes(node))
    typed = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(n) for n in names_out if n]
    version = [helper.make_opsetid(node.domain, node.since_version)]
    return helper.make_model(helper.make_graph([proto], "one", typed, results), opset_imports=version)


def _attributes(node: Operator) -> dict[str, Any]:
    """Those that the operator's schema knows: others are hints to our own lowering."""
    from onnx import numpy_helper

    schema = schema_of(node.op_type, node.domain, node.since_version)
    names = node.attributes.keys() if schema is None else schema.attributes.keys()
    present = {k: node.attributes[k] for k in names if k in node.attributes}
    present = {k: v for k, v in present.items() if v is not None and (not isinstance(v, list) or v)}
    return {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in present.items()}
