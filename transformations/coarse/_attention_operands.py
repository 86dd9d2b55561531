"""Operands of attention as steps need them that give it another form: narrow again, and what is known of a dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values


def as_it_was(graph: Graph, wide: str, onnx_type: int) -> str:
    """A factor in the narrow type that it had before it was widened for an operator that computes."""
    dtype, producer = types.from_onnx(onnx_type), graph.producer(wide)
    if getattr(producer, "op_type", "") == "Cast" and graph.dtype(graph.operand(producer, 0)) == dtype:
        return graph.operand(producer, 0)
    narrow = graph.add_array("narrow", graph.shape(wide), dtype)
    graph.add_operator("Cast", [wide], [narrow], {"to": onnx_type})
    return narrow


def round_to(graph: Graph, wide: str, onnx_type: int) -> str:
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


def heads_apart(graph: Graph, packed: str, heads: int) -> str:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, width = graph.shape(packed)
    shape = graph.add_constant("heads", np.array([0, 0, heads, -1]))
    split = graph.add_array("split", (batch, length, heads, dim(width // heads)), graph.dtype(packed))
    graph.add_operator("Reshape", [packed, shape], [split])
    apart = graph.add_array("apart", (batch, heads, length, dim(width // heads)), graph.dtype(packed))
    graph.add_operator("Transpose", [split], [apart], {"perm": [0, 2, 1, 3]})
    return apart


def heads_beside(graph: Graph, packed: str, heads: int) -> str:
    """What is written in the place of ``packed``, [batch, length, heads * size], as [batch, heads, length, size]."""
    batch, length, width = graph.shape(packed)
    apart = graph.add_array("apart", (batch, heads, length, dim(width // heads)), graph.dtype(packed))
    beside = graph.add_array("beside", (batch, length, heads, dim(width // heads)), graph.dtype(packed))
    graph.add_operator("Transpose", [apart], [beside], {"perm": [0, 2, 1, 3]})
    shape = graph.add_constant("packed", np.array([0, 0, -1]))
    graph.add_operator("Reshape", [beside, shape], [packed])
    return apart


_MOVERS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")  # of their first operand, without a change


def move_narrow(graph: Graph, name: str) -> None:
    """Let what moves a narrow array do so as it is, instead of widened and then rounded again: a pass over memory for
    each Cast, in either direction."""
    dtype = graph.dtype(name)
    while (reader := _only_reader(graph, name)) is not None:
        if _is_mover(graph, reader, name):
            name = graph.result(reader, 0)
            continue
        movers, last = _way(graph, graph.result(reader, 0), dtype) if reader.op_type == "Cast" else ([], None)
        if last is None:
            return
        graph.replace_uses(graph.result(last, 0), end := _move(graph, movers, name, dtype))
        graph.take_out([reader, *movers, last])
        name = end


def _move(graph: Graph, movers: list[Operator], name: str, dtype: DType) -> str:
    for mover in movers:
        moved = graph.add_array("moved", graph.shape(graph.result(mover, 0)), dtype)
        with graph.label_nodes(origins=graph.origins_of(mover)):
            graph.add_operator(mover.op_type, [name, *graph.inputs_of(mover)[1:]], [moved], mover.attributes)
        name = moved
    return name


def _way(graph: Graph, wide: str, dtype: DType) -> tuple[list[Any], Any]:
    """What moves ``wide``, which nothing else reads, and the Cast to ``dtype`` at the end; None where there is none."""
    movers: list[Operator] = []
    while (reader := _only_reader(graph, wide)) is not None:
        if reader.op_type == "Cast":
            return (movers, reader) if graph.dtype(graph.result(reader, 0)) == dtype else ([], None)
        if not _is_mover(graph, reader, wide):
            break
        movers.append(reader)
        wide = graph.result(reader, 0)
    return [], None


def _only_reader(graph: Graph, name: str) -> Node | None:
    """The one operator that reads an array, which nobody else sees."""
    readers = graph.consumers(name)
    alone = len(readers) == 1 and not graph.views_of(name) and not graph.is_kept(name)
    return readers[0] if alone and isinstance(readers[0], Operator) and not readers[0].domain else None


def _is_mover(graph: Graph, node: Node, name: str) -> bool:
    return node.op_type in _MOVERS and graph.operand(node, 0) == name


def read_dropout(graph: Graph, node: Node) -> tuple[str | None, dict[str, Any]]:
    """Why it is not known which weights are dropped, or how many are, as attributes."""
    inputs = graph.inputs_of(node)
    probability, flag = values.at(inputs, 4), values.at(inputs, 5)
    ratio = 0.5 if probability is None else values.scalar_value(graph, probability)
    training = False if flag is None else values.scalar_value(graph, flag)
    if ratio is None or training is None:
        return "how many weights are dropped is known only at run time", {}
    if not training or ratio == 0:
        return None, {}
    return ("all weights are dropped", {}) if ratio >= 1 else (None, {"ratio": float(ratio)})
