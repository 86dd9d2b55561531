"""What to say of an index out of range: the program only knows that there was one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper

_BY_INDEX = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "OneHot": 0, "ScatterElements": 1, "ScatterND": 1}
_SAME_VALUES = frozenset("Cast Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
_SHOWN = 3


def culprit(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> str:
    """Which operator of ``model``, bodies of control flow included, reads beside an array, and by which of the inputs
    ``feeds``; where an index is computed, all operators that may."""
    readers = [node for node in _nodes(model.graph) if node.domain in ("", "ai.onnx") and node.op_type in _BY_INDEX]
    wrong = next(_wrong_inputs(model, readers, feeds), None)
    if wrong is not None:
        return wrong
    listed = [_node_name(node) for node in readers[:_SHOWN]] + (["..."] if len(readers) > _SHOWN else [])
    where = f" that the model computes, in one of {', '.join(listed)}" if listed else ""
    return f"an index is out of range{where}"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body)


def _wrong_inputs(
    model: onnx.ModelProto, readers: list[onnx.NodeProto], feeds: Mapping[str, np.ndarray]
) -> Iterator[str]:
    producers = {name: node for node in _nodes(model.graph) for name in node.output}
    values = (*model.graph.input, *model.graph.value_info)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    shapes |= {t.name: list(t.dims) for t in model.graph.initializer}
    for node in readers:
        source = _source(node.input[_BY_INDEX[node.op_type]], producers)
        extent = _extent(node, shapes.get(node.input[0], []))
        if source not in feeds or not extent or not feeds[source].size:
            continue
        least, most = int(feeds[source].min()), int(feeds[source].max())
        if least < -extent or most >= extent:
            wrong = most if most >= extent else least
            yield f"{_node_name(node)}: input {source!r} holds {wrong}, expected {-extent} to {extent - 1}"


def _source(name: str, producers: Mapping[str, onnx.NodeProto]) -> str:
    """Where the elements of ``name`` come from."""
    while name in producers and producers[name].op_type in _SAME_VALUES:
        name = producers[name].input[0]
    return name


def _extent(node: onnx.NodeProto, shape: list[int]) -> int:
    """Entries along the axis that is indexed; 0 where they are not known."""
    axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), 0)
    one_axis = node.op_type in ("Gather", "GatherElements", "ScatterElements")
    return shape[axis] if one_axis and -len(shape) <= axis < len(shape) else 0


def _node_name(node: onnx.NodeProto) -> str:
    return f"operator {node.op_type} ({node.name or node.output[0]!r})"
