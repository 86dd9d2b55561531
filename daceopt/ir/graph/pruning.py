"""Removes what a graph computes and nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daceopt.ir.graph import parts

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph


def prune(graph: Graph) -> int:
    """Remove nodes whose results nobody reads, and arrays without users; returns how many."""
    before = len(graph.compute()) + len(graph.arrays())
    for node in reversed(graph.nodes()):
        if getattr(node, "has_side_effects_", False):
            continue
        if not any(is_used(graph, n) for n in graph.outputs_of(node) if n is not None):
            graph.remove(node)
        elif hasattr(node, "output_connectors"):
            _drop_unused_outputs(graph, node)
    parts.dissolve(graph)
    waiting = graph.arrays()
    while waiting:
        name = waiting.pop()
        if graph.has(name) and _is_droppable(graph, name):
            waiting += [graph.view_source(name)] if graph.is_view(name) else []  # which may have been declared later
            graph.drop(name)
    return before - len(graph.compute()) - len(graph.arrays())


def is_used(graph: Graph, name: str) -> bool:
    """Does a node read ``name`` or what shows its elements, or does it outlive the program?"""
    return graph.is_kept(name) or any(graph.consumers(alias) for alias in graph.aliases(name))


def _drop_unused_outputs(graph: Graph, node: Any) -> None:
    for connector, name in graph.writes(node).items():
        if not is_used(graph, name):
            graph.drop_write(node, connector)


def _is_droppable(graph: Graph, name: str) -> bool:
    if name in graph.inputs or graph.is_kept(name) or graph.is_read(name):
        return False
    return graph.is_view(name) or not graph.is_written(name)
