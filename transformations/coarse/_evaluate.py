"""Computes one operator whose inputs are all constants, with the reference implementations that come with ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.graph import Graph


def evaluate(graph: Graph, node: Any) -> list[np.ndarray]:
    """The values of the outputs that are present, in order, each with its declared dtype.

    Raises Unsupported when the reference has no implementation or refuses the inputs.
    """
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    inputs, outputs = graph.inputs_of(node), graph.outputs_of(node)
    names_in = [f"i{k}" if n is not None else "" for k, n in enumerate(inputs)]
    names_out = [f"o{k}" if n is not None else "" for k, n in enumerate(outputs)]
    feeds = {f"i{k}": graph.constants[n] for k, n in enumerate(inputs) if n is not None}
    try:
        proto = helper.make_node(node.op_type, names_in, names_out, domain=node.domain, **_attributes(node))
        session = ReferenceEvaluator(proto, opsets={node.domain: node.since_version})
        found = session.run([n for n in names_out if n], feeds)
    except Exception as error:
        raise Unsupported(f"{node.op_type} of constants cannot be folded: {type(error).__name__}: {error}") from error
    present = [n for n in outputs if n is not None]
    return [np.asarray(v, types.to_numpy(graph.dtype(n))) for n, v in zip(present, found, strict=True)]


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import numpy_helper

    given = {k: v for k, v in node.attributes.items() if v is not None and (not isinstance(v, list) or v)}
    return {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
