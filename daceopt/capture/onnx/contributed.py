"""Operators of the domain ``com.microsoft``, which quantizers and ONNX Runtime's optimizer write, as standard ones.

Each rule appends nodes that compute what the operator does; what a rule does not take stays, and runs in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from daceopt.ops.core import subgraph

DOMAIN = "com.microsoft"
_OLDEST = 11  # opset of all that rules write
FLOAT = TensorProto.FLOAT


class Refused(Exception):
    """A form of an operator that no rule takes."""


class Expansion:
    """What takes the place of one node: ``op`` adds a node and returns the name of its result."""

    def __init__(self, model: onnx.ModelProto, graph: onnx.GraphProto, node: onnx.NodeProto):
        self.opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
        self.inputs = [*node.input]
        self.attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[TensorProto] = []
        self.node = node
        self._graph = graph
        self._stem = next(name for name in node.output if name)

    def at(self, position: int) -> str:
        """The input there, empty where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def attribute(self, name: str, default: object) -> Any:
        return self.attributes.get(name, default)

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: object) -> str:
        name = out or f"{self._stem}/{len(self.nodes)}"
        present = list(inputs)
        while present and not present[-1]:
            present.pop()
        self.nodes.append(helper.make_node(op_type, present, [name], f"{self.node.name}/{op_type}", **attributes))
        return name

    def several(self, op_type: str, count: int, *inputs: str, **attributes: object) -> list[str]:
        """The results of an operator that has so many."""
        names = [f"{self._stem}/{len(self.nodes)}/{k}" for k in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, names, f"{self.node.name}/{op_type}", **attributes))
        return names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"{self._stem}/c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def value(self, name: str) -> np.ndarray:
        """A constant's elements. Raises Refused for what is computed."""
        tensor = next((t for t in self._graph.initializer if t.name == name), None)
        if tensor is None:
            raise Refused(f"{name} is computed")
        return numpy_helper.to_array(tensor)

    def rank(self, name: str) -> int:
        """Raises Refused where it is not declared."""
        for tensor in self._graph.initializer:
            if tensor.name == name:
                return len(tensor.dims)
        for value in (*self._graph.input, *self._graph.value_info):
            if value.name == name and value.type.tensor_type.HasField("shape"):
                return len(value.type.tensor_type.shape.dim)
        raise Refused(f"the rank of {name} is not declared")

    def result(self, name: str, position: int = 0) -> None:
        """Give what is computed as ``name`` the name of the operator's result."""
        if position < len(self.node.output) and self.node.output[position]:
            self.op("Identity", name, out=self.node.output[position])


Rule: TypeAlias = Callable[[Expansion], None]
RULES: dict[str, Rule] = {}


def expands(*op_types: str) -> Callable[[Rule], Rule]:
    """Register what expands these operators."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def expand(model: onnx.ModelProto) -> None:
    """Put standard operators in the place of contributed ones, as far as there are rules."""
    for graph in list(subgraph.all_graphs(model.graph)):
        if any(n.domain == DOMAIN and n.op_type in RULES for n in graph.node):
            _expand(model, graph)


def _expand(model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        expansion = _expansion(model, graph, node)
        nodes += [node] if expansion is None else expansion.nodes
        graph.initializer.extend([] if expansion is None else expansion.stored)
    copies = onnx.GraphProto()
    copies.node.extend(nodes)  # copies: what is deleted takes the old ones with it
    del graph.node[:]
    graph.node.extend(copies.node)
    read = {name for n in graph.node for name in subgraph.reads(n)} | {v.name for v in graph.output}
    stored = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(stored)


def _expansion(model: onnx.ModelProto, graph: onnx.GraphProto, node: onnx.NodeProto) -> Expansion | None:
    rule = RULES.get(node.op_type) if node.domain == DOMAIN and any(node.output) else None
    if rule is None:
        return None
    expansion = Expansion(model, graph, node)
    if expansion.opset < _OLDEST:
        return None
    try:
        rule(expansion)
    except (Refused, ValueError, IndexError, KeyError, TypeError):  # the last four of files that make no sense
        return None
    return expansion
