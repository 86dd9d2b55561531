"""Operators over narrow types: operands are widened around an operator that computes, its results rounded back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daceopt.ir import types
from daceopt.ir.graph import Graph
from daceopt.ops import registry
from daceopt.ops.registry import Operator


def add_operator(
    graph: Graph,
    op_type: str,
    inputs: Sequence[str | None],
    outputs: Sequence[str | None],
    attributes: dict[str, Any],
    domain: str = "",
) -> Operator:
    """Add an operator as ``Graph.add_operator`` does; narrow operands of one that computes pass through Casts.

    Half types thus compute in float32 and are rounded once for each operator, as the standard says.
    """
    if not _is_widened(graph, op_type, domain, [*inputs, *outputs]):
        return graph.add_operator(op_type, inputs, outputs, attributes, domain)
    wide_in = [_widened(graph, n) for n in inputs]
    wide_out = [_like(graph, n) for n in outputs]
    operator = graph.add_operator(op_type, wide_in, wide_out, attributes, domain)
    for wide, name in zip(wide_out, outputs):
        if wide is not None and wide != name:
            _cast(graph, wide, str(name))
    return operator


def _is_widened(graph: Graph, op_type: str, domain: str, names: Sequence[str | None]) -> bool:
    narrow = {graph.dtype(n) for n in names if n is not None and types.is_narrow(graph.dtype(n))}
    return not narrow <= set(registry.accepted_types(op_type, domain))


def _widened(graph: Graph, name: str | None) -> str | None:
    if name is None or not types.is_narrow(graph.dtype(name)):
        return name
    wide = _like(graph, name)
    _cast(graph, name, str(wide))
    return wide


def _like(graph: Graph, name: str | None) -> str | None:
    """An array like ``name`` of the type in which it is computed; ``name`` itself where that is its own."""
    if name is None or not types.is_narrow(graph.dtype(name)):
        return name
    return graph.add_array("wide", graph.shape(name), types.computed(graph.dtype(name)))


def _cast(graph: Graph, source: str, target: str) -> None:
    graph.add_operator("Cast", [source], [target], {"to": types.to_onnx(graph.dtype(target))})
