"""Shapes that a model declares and that mean nothing, or are wrong: the graph decides, as it does in other runtimes."""

from __future__ import annotations

import logging
import re

import onnx

from daceopt.ops.core import subgraph

logger = logging.getLogger("daceopt.importer")

_NAMELESS = frozenset(["none", "unk", "unknown", "dynamic"])  # what exporters write where a size has no name


def open_meaningless(model: onnx.ModelProto, name: str) -> None:
    """Leave open what is declared as a negative extent, or by a text that is no name: two of those need not be equal.

    A warning about the file ``name`` says of which values.
    """
    changed = {}
    for graph in subgraph.all_graphs(model.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
                if dim.HasField("dim_value") and dim.dim_value < 0:
                    changed[value.name] = dim.dim_value
                    dim.ClearField("dim_value")
                elif isinstance(dim.dim_param, str) and dim.dim_param and _is_nameless(dim.dim_param):
                    dim.ClearField("dim_param")
    if changed:
        listed = ", ".join(f"{value!r}" for value in list(changed)[:3])
        logger.warning("%s: %s declared with a negative extent; it is taken to be open", name, listed)


def without_results(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that says nothing of the shapes of what its nodes compute; element types stay."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    initial = {v.name for v in copy.graph.input} | {t.name for t in copy.graph.initializer}
    for value in (*copy.graph.value_info, *copy.graph.output):
        if value.name not in initial and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return copy


def warn_of_results(name: str, reason: str) -> None:
    """Say that shapes which the file ``name`` declares were passed over, because of ``reason``."""
    logger.warning("%s: declared shapes are wrong and are passed over, the graph decides: %s", name, reason)


def _is_nameless(text: str) -> bool:
    return not re.search(r"[A-Za-z0-9_]", text) or text.lower() in _NAMELESS or re.fullmatch(r"-\d+", text) is not None
