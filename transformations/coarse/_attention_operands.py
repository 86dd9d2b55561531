"""Operands of attention as steps need them that give it another form: narrow again, and what is known of a dropout."""

from __future__ import annotations

from typing import Any

from daceopt.ir import types
from daceopt.ir.graph import Graph
from daceopt.ops.core import values


def as_it_was(graph: Graph, wide: str, onnx_type: int) -> str:
    """A factor in the narrow type that it had before it was widened for an operator that computes."""
    dtype, producer = types.from_onnx(onnx_type), graph.producer(wide)
    if getattr(producer, "op_type", "") == "Cast" and graph.dtype(graph.operand(producer, 0)) == dtype:
        return graph.operand(producer, 0)
    narrow = graph.add_array("narrow", graph.shape(wide), dtype)
    graph.add_operator("Cast", [wide], [narrow], {"to": onnx_type})
    return narrow


def rounded(graph: Graph, wide: str, onnx_type: int) -> str:
    """What is written in the place of ``wide``, and read rounded to the narrow type."""
    readers, dtype = graph.consumers(wide), types.from_onnx(onnx_type)
    if len(readers) == 1 and not graph.views_of(wide) and wide not in graph.outputs:
        (reader,) = readers
        if getattr(reader, "op_type", "") == "Cast" and graph.dtype(graph.result(reader, 0)) == dtype:
            narrow = graph.result(reader, 0)
            graph.remove(reader)
            return narrow
    narrow = graph.add_array("narrow", graph.shape(wide), dtype)
    graph.add_operator("Cast", [narrow], [wide], {"to": types.to_onnx(graph.dtype(wide))})
    return narrow


def dropped(graph: Graph, node: Any) -> tuple[str | None, dict[str, Any]]:
    """Why it is not known which weights are dropped, or how many are, as attributes."""
    inputs = graph.inputs_of(node)
    given, flag = values.at(inputs, 4), values.at(inputs, 5)
    ratio = 0.5 if given is None else values.scalar_value(graph, given)
    training = False if flag is None else values.scalar_value(graph, flag)
    if ratio is None or training is None:
        return "how many weights are dropped is known only at run time", {}
    if not training or ratio == 0:
        return None, {}
    return ("all weights are dropped", {}) if ratio >= 1 else (None, {"ratio": float(ratio)})
