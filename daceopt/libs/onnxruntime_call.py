"""One ONNX operator run by ONNX Runtime as a host call: the last resort for operators without a native form."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt.errors import Unsupported
from daceopt.ir.nodes.library import HostCall
from daceopt.ir.scalar import types

if TYPE_CHECKING:
    import onnx

    from daceopt.ir.graph.graph import Graph

_SESSIONS = 256
_OLDEST_OPSET = 7  # that ONNX Runtime promises to run


def add(
    graph: Graph,
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    inputs: Sequence[str | None],
    outputs: Sequence[str | None],
) -> None:
    """Add a HostCall that runs ``node`` (of ``model``) from arrays ``inputs`` to arrays ``outputs`` (None = absent).

    Raises Unsupported for an operator that holds a graph (If, Loop, Scan), because its body may read values by name,
    and for one that ONNX Runtime does not know either.
    """
    payload = base64.b64encode(_single_node_model(graph, model, node, inputs, outputs).SerializeToString()).decode()
    _check(node, payload)
    reads = {f"In{i}": name for i, name in enumerate(n for n in inputs if n is not None)}
    writes = {f"Out{i}": name for i, name in enumerate(n for n in outputs if n is not None)}
    call = HostCall("onnxruntime", callback="daceopt.libs.onnxruntime_call:run", payload=payload)
    graph.add_node(call, reads, writes)


def run(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Run the one-operator model in ``payload`` (base64) and copy its results into ``outputs``."""
    session = _session(payload)
    feeds = {f"in{i}": np.ascontiguousarray(array).reshape(array.shape) for i, array in enumerate(inputs)}
    for target, value in zip(outputs, session.run(None, feeds), strict=True):
        if target.shape != value.shape:
            raise ValueError(f"ONNX Runtime returned shape {value.shape}, expected {target.shape}")
        target[...] = value


def _check(node: onnx.NodeProto, payload: str) -> None:
    try:
        _session(payload)
    except Exception as error:  # ONNX Runtime's own kinds, or ImportError where it is not installed
        reason = " ".join(str(error).split())[:300]
        raise Unsupported(
            f"operator {node.op_type} ({node.name!r}) has no native form, and ONNX Runtime cannot run it: {reason}"
        ) from error


@lru_cache(_SESSIONS)
def _session(payload: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Its idle threads must not spin on the cores that the rest of the program computes on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(base64.b64decode(payload), options, providers=["CPUExecutionProvider"])


def _single_node_model(
    graph: Graph,
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    inputs: Sequence[str | None],
    outputs: Sequence[str | None],
) -> onnx.ModelProto:
    import onnx

    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        raise Unsupported(
            f"operator {node.op_type} ({node.name!r}) holds a graph, which cannot run in ONNX Runtime alone"
        )
    names_in, infos_in = _values(graph, inputs, "in")
    names_out, infos_out = _values(graph, outputs, "out")
    single = onnx.helper.make_node(node.op_type, names_in, names_out, domain=node.domain)
    single.attribute.extend(node.attribute)
    body = onnx.helper.make_graph([single], "operator", infos_in, infos_out)
    single_model = onnx.helper.make_model(body, opset_imports=_opsets(model, node), functions=model.functions)
    single_model.ir_version = model.ir_version
    return single_model


def _opsets(model: onnx.ModelProto, node: onnx.NodeProto) -> list[onnx.OperatorSetIdProto]:
    """The model's; but the version that an operator of ONNX's own is from, for ONNX Runtime may not know later ones."""
    import onnx

    versions = {o.domain: o.version for o in model.opset_import}
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = versions.get("", versions.get("ai.onnx", 0))
    if domain == "" and not model.functions and onnx.defs.has(node.op_type, version):
        since = onnx.defs.get_schema(node.op_type, version, "").since_version
        return [onnx.helper.make_opsetid("", max(since, min(version, _OLDEST_OPSET)))]
    return list(model.opset_import)


def _values(graph: Graph, names: Sequence[str | None], prefix: str) -> tuple[list[str], list[onnx.ValueInfoProto]]:
    """Names of operands ("" = absent) and their types, ranks without sizes."""
    import onnx

    labels: list[str] = []
    infos: list[onnx.ValueInfoProto] = []
    for name in names:
        labels.append("" if name is None else f"{prefix}{len(infos)}")
        if name is not None:
            rank = len(graph.shape(name))
            infos.append(
                onnx.helper.make_tensor_value_info(labels[-1], types.to_onnx(graph.dtype(name)), [None] * rank)
            )
    return labels, infos
