"""Arguments whose axes are in memory in another order than they are counted, such as weights with channels last, as
programs take them: in rows, along the order in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch.strides import dense_order

_LEAST = 1 << 10  # elements: fewer are copied in less time than a view of them is taken
_READING = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear")


def put_in_order(graph: fx.GraphModule, inputs: Sequence[object]) -> tuple[fx.GraphModule, dict[int, tuple[int, ...]]]:
    """A graph that takes dense arguments as views in rows, and for each of these the order of its axes in memory.

    Otherwise each call copies them into rows: 47 MB of weights for ResNet-18 with channels last. Those are taken so
    that convolutions and linear layers alone read, so that nobody writes into them. ``graph`` stays as it is. Of use
    where no gradients are wanted: those of weights would have to be put in order, too.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    orders = {k: order for k, (n, x) in enumerate(zip(placeholders, inputs)) if (order := _order(n, x)) is not None}
    if not orders:
        return graph, {}
    own = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    own.output(own.graph_copy(graph.graph, copies))
    last = next(n for n in reversed(own.nodes) if n.op == "placeholder")
    for k, order in orders.items():
        argument = copies[placeholders[k]]
        value = argument.meta["example_value"]
        with own.inserting_after(last):
            logical = own.call_method("permute", (argument, *map(order.index, range(len(order)))))
        argument.replace_all_uses_with(logical, lambda user, logical=logical: user is not logical)
        logical.meta = {**argument.meta, "example_value": value}
        logical.meta.pop("grapharg", None)
        argument.meta = {**argument.meta, "example_value": value.permute(order)}
    return fx.GraphModule(graph, own), orders


def in_order(arguments: Sequence[Any], orders: Mapping[int, Sequence[int]]) -> list[Any]:
    """The arguments as the graph of :func:`put_in_order` takes them."""
    own = list(arguments)
    for k, order in orders.items():
        own[k] = own[k].permute(order)
    return own


def _order(placeholder: fx.Node, value: object) -> tuple[int, ...] | None:
    example = placeholder.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not isinstance(example, torch.Tensor) or value.is_complex():
        return None
    if any(not isinstance(n, int) for n in (*example.shape, *example.stride())) or example.numel() < _LEAST:
        return None
    if example.is_contiguous() or not all(_reads(user) for user in placeholder.users):
        return None
    return dense_order(example)


def _reads(user: fx.Node) -> bool:
    return user.op == "call_function" and getattr(user.target, "__name__", "") in _READING
