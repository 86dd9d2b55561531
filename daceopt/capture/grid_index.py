"""Indexing with a grid of full ranges, which attention masks are written with, selects everything: a view says so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

_ATEN = torch.ops.aten


def view_instead_of_grid_index(module: GraphModule) -> None:
    """Edit ``module`` in place.

    before:  index(x, [arange(B).reshape(B, 1, 1), arange(S).reshape(1, 1, S)])     with x (B, S)
    after:   unsqueeze(x, 1)
    """
    for node in module.graph.nodes:
        if node.target is not _ATEN.index.Tensor:
            continue
        source, indices = node.args[0], node.args[1]
        axes = _grid_axes(source.meta["val"].shape, indices)
        if axes is not None:
            name, replacement = node.name, _unsqueezed(module.graph, node, axes)
            node.replace_all_uses_with(replacement)
            module.graph.erase_node(node)
            replacement.name = name  # the signature names outputs
    module.recompile()


def _unsqueezed(graph: Graph, node: Node, axes: list[int]) -> Node:
    value = node.args[0]
    assert isinstance(value, Node)
    for axis in (a for a in range(node.meta["val"].ndim) if a not in axes):
        fake = value.meta["val"].unsqueeze(axis)
        with graph.inserting_before(node):
            value = graph.call_function(_ATEN.unsqueeze.default, (value, axis))
        value.meta["val"] = fake
    return value


def _grid_axes(shape: Any, indices: Any) -> list[int] | None:
    """The result axis of each dimension, if every index is its dimension's full range along an axis of its own, in
    order.
    """
    if len(indices) != len(shape) or not all(isinstance(index, Node) for index in indices):
        return None
    rank = max(index.meta["val"].ndim for index in indices)
    axes = []
    for extent, index in zip(shape, indices, strict=True):
        sizes = index.meta["val"].shape
        own = [axis for axis, size in enumerate(sizes) if not (isinstance(size, int) and size == 1)]
        if len(own) != 1 or str(sizes[own[0]]) != str(extent) or not _is_full_range(index):
            return None
        axes.append(own[0] + rank - len(sizes))
    return axes if all(a < b for a, b in pairwise(axes)) else None


def _is_full_range(node: Any) -> bool:
    """Whether ``node`` is arange(its own length), through operations that only add dimensions of extent 1."""
    while isinstance(node, Node):
        if node.target is _ATEN.arange.default:
            return True
        if node.target is _ATEN.arange.start_step:
            return node.args[0] == 0 and (len(node.args) < 3 or node.args[2] == 1)
        if not _keeps_values(node):
            return False
        node = node.args[0]
    return False


def _keeps_values(node: Node) -> bool:
    if node.target is _ATEN.unsqueeze.default:
        return True
    if node.target is _ATEN.add.Tensor:
        return not isinstance(node.args[1], Node) and node.args[1] == 0
    if node.target is _ATEN.slice.Tensor:
        source = node.args[0]
        assert isinstance(source, Node)
        return [str(d) for d in source.meta["val"].shape] == [str(d) for d in node.meta["val"].shape]
    return False
