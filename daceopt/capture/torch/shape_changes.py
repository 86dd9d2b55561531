"""Shapes that are changed in place, as by ``t_``, become views that are read from there on.

Dynamo knows one value of a tensor, of the shape that it has in the end: what reads it before would be described by
that, too.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import fx

from daceopt.capture.torch.gradient_scopes import requires_grad, without_gradients

CHANGES = frozenset({"as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"})
BEFORE = "geometry before"  # in the meta of a node of Dynamo's that changes a shape


class Geometry(NamedTuple):
    """Where the elements of a tensor are."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any

    @staticmethod
    def of(value: torch.Tensor) -> Geometry:
        return Geometry(tuple(value.shape), value.stride(), value.storage_offset())


def as_views(graph: fx.GraphModule) -> fx.GraphModule:
    """A graph without changes of shape in place; ``graph`` stays as it is. Where gradients are off, those of what
    requires one stay, too."""
    if not any(BEFORE in n.meta for n in graph.graph.nodes):
        return graph
    own = fx.Graph()
    own.output(own.graph_copy(graph.graph, {}))
    unrecorded = without_gradients(own)
    changes = [n for n in own.nodes if BEFORE in n.meta and not (n in unrecorded and requires_grad(n))]
    key = _object
    for _, group in groupby(sorted(changes, key=key), key):
        _replace(own, list(group))
    return fx.GraphModule(graph, own)


def _object(node: fx.Node) -> int:
    """The same number for what is one tensor in Python."""
    return id(node.meta.get("example_value"))


def _replace(graph: fx.Graph, changes: list[fx.Node]) -> None:
    """``changes``: all of one tensor, in their order."""
    position = {node: k for k, node in enumerate(graph.nodes)}
    value = changes[0].meta["example_value"]
    same = [n for n in graph.nodes if n.meta.get("example_value") is value]
    for node in reversed(same):
        later = next((c for c in changes if position[c] > position[node]), None)
        if later is not None:
            node.meta["example_value"] = _see(value, later.meta[BEFORE])
    for change in changes:
        with graph.inserting_before(change):
            view = graph.call_method(_view(change), change.args, change.kwargs)
        view.meta = {k: v for k, v in change.meta.items() if k != BEFORE}
        for node in same:
            node.replace_all_uses_with(view, lambda user, at=position[change]: position.get(user, -1) > at)
        same[same.index(change)] = view
        graph.erase_node(change)


def _see(value: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    with torch.enable_grad():
        return value.as_strided(*geometry)


def _view(change: fx.Node) -> str:
    name = change.target if isinstance(change.target, str) else change.target.__name__
    return name.partition(".")[0].removesuffix("_")
