"""Tensors that a graph of Dynamo holds as attributes, as arguments of it: what an optimizer updates, above all."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import fx


def lift_tensors(graph: fx.GraphModule) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """A graph that takes, after its own arguments, the tensors that ``graph`` holds, and these tensors.

    ``graph`` stays as it is. Dynamo guards that they are the same objects in each call. Where gradients are not
    recorded, they are passed without: what is changed in place may be a leaf.
    """
    values: dict[str, Any] = {n.target: attrgetter(n.target)(graph) for n in graph.graph.nodes if n.op == "get_attr"}
    held = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    if not held:
        return graph, ()
    own = fx.Graph()
    own.output(own.graph_copy(graph.graph, {}))
    last = next((n for n in reversed(own.nodes) if n.op == "placeholder"), own._root)
    arguments: dict[int, fx.Node] = {}
    for node in [n for n in own.nodes if n.op == "get_attr" and n.target in held]:
        tensor = held[node.target]
        if id(tensor) not in arguments:
            with own.inserting_after(last):
                last = arguments[id(tensor)] = own.placeholder(node.name)
            last.meta = dict(node.meta) if torch.is_grad_enabled() else _detach(node.meta)
        node.replace_all_uses_with(arguments[id(tensor)])
        own.erase_node(node)
    tensors = {id(tensor): tensor for tensor in held.values()}
    passed = (tensors[k] for k in arguments)
    plain = passed if torch.is_grad_enabled() else (t.detach() for t in passed)
    return fx.GraphModule(graph, own), tuple(plain)


def _detach(meta: dict[str, Any]) -> dict[str, Any]:
    """What is known of an argument that is passed without its gradient."""
    value = meta.get("example_value")
    return {**meta, "example_value": value.detach()} if isinstance(value, torch.Tensor) else dict(meta)
