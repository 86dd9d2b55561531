"""ONNX graphs inside of operators, and which outer values they read."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graph attributes of an ONNX node."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """An ONNX graph and those inside of its nodes, outer ones first."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        stack += [inner for node in current.node for inner in graphs_of(node)]


def captures(node: onnx.NodeProto) -> list[str]:
    """The outer values that graphs of an ONNX node read by name, each once."""
    return list(dict.fromkeys(name for g in graphs_of(node) for name in free_names(g)))


def reads(node: onnx.NodeProto) -> list[str]:
    """The values that an ONNX node reads, as operands or in graphs of its own; each once."""
    return list(dict.fromkeys(name for name in (*node.input, *captures(node)) if name))


def free_names(graph: onnx.GraphProto) -> list[str]:
    """The values that an ONNX graph reads and does not define, graphs inside of it included; each once."""
    defined = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    defined |= {t.values.name for t in graph.sparse_initializer}
    names: dict[str, None] = {}
    for node in graph.node:
        names.update(dict.fromkeys(n for n in (*node.input, *captures(node)) if n and n not in defined))
        defined.update(node.output)
    names.update(dict.fromkeys(v.name for v in graph.output if v.name not in defined))
    return list(names)
