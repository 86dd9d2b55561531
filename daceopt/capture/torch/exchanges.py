"""Assignments to ``.data``, by which an argument of a call gets the memory of another tensor.

A program computes the numbers as for a copy, and the call does the assignment in the end. Where somebody could tell
one from the other, because something else has the memory of either, the graph is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch.gradient_scopes import is_wrapped, storage
from daceopt.capture.torch.shape_changes import Geometry
from daceopt.capture.torch.strides import dense_order
from daceopt.capture.torch.writes import SEQUENCE, WRITES, written_nodes
from daceopt.errors import Unsupported
from daceopt.torch_internals import autograd_engine
from daceopt.torch_internals.fake_tensors import FakeTensor
from daceopt.torch_internals.functional_tensors import FunctionalTensor


def assign(tensor: torch.Tensor, value: object) -> None:
    """The statement ``tensor.data = value``; in a trace a copy, which autograd does not see either."""
    if isinstance(tensor, (FakeTensor, FunctionalTensor)):
        tensor.data.copy_(value)
    else:
        tensor.data = value


fx.node.has_side_effect(assign)


def insert(graph: Any, tensor: fx.Proxy, value: fx.Proxy) -> None:
    """Call ``assign`` in a graph that Dynamo makes; both proxies are of it."""
    node = graph.create_proxy("call_function", assign, (tensor, value), {}).node
    node.meta[WRITES], node.meta[SEQUENCE] = {0: False}, autograd_engine.next_sequence_number()


def is_in_place(tensor: fx.Node, value: fx.Node) -> bool:
    """Whether ``value`` is the tensor's own data, as after ``x.data *= 2``: its assignment says nothing new."""
    old, new = tensor.meta["example_value"], value.meta["example_value"]
    if is_wrapped(new) or storage(tensor) != storage(value) or old.dtype != new.dtype:
        return False
    before = [n for n in _exchanges(tensor.graph) if n.args[0] is tensor]
    return Geometry.of(old) == Geometry.of(new) and (not before or before[-1] < value)


def is_alike(tensor: fx.Node, value: fx.Node) -> bool:
    """Whether ``tensor`` is an argument that autograd has not computed, and ``value`` is in other memory as it
    does: the assignment changes its memory alone."""
    old, new = tensor.meta["example_value"], value.meta["example_value"]
    if tensor.op != "placeholder" or not old.is_leaf or is_wrapped(new) or storage(tensor) == storage(value):
        return False
    kinds = [(t.dtype, t.device, t.layout, t.shape, t.stride(), t.is_conj(), t.is_neg()) for t in (old, new)]
    return kinds[0] == kinds[1] and dense_order(old) is not None


def exchanged_arguments(graph: fx.Graph) -> tuple[int, ...]:
    """The positions of the arguments that get another memory."""
    tensors = {n.args[0] for n in _exchanges(graph)}
    return tuple(k for k, n in enumerate(_arguments(graph)) if n in tensors)


def _arguments(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "placeholder"]


def behind(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """Calls that write by ``.data``, of which no version tells, with the operands that they write."""
    return [(n, x) for n in graph.nodes for x in written_nodes(n) if n.target is assign or _is_data(x)]


def _is_data(node: fx.Node) -> bool:
    while node.target is not autograd_engine.data_of:
        source = next((x for x in node.all_input_nodes if storage(x) == storage(node)), None)
        if source is None or storage(node) is None:
            return False
        node = source
    return True


def unversioned_arguments(graph: fx.Graph) -> tuple[int, ...]:
    """The positions of the arguments that are written by ``.data`` alone."""
    hidden = behind(graph)
    own = {storage(x) for _, x in hidden}
    visible = {storage(x) for n in graph.nodes for x in written_nodes(n) if (n, x) not in hidden}
    return tuple(k for k, memory in enumerate(map(storage, _arguments(graph))) if memory in own - visible)


def check(graph: fx.Graph) -> None:
    """Raise Unsupported where somebody could tell an assignment to ``.data`` from a copy."""
    for node in (n for module in graph.owning_module.modules() for n in getattr(module, "graph", fx.Graph()).nodes):
        if node.target in (torch.Tensor.set_, "set_"):
            raise Unsupported(f"{node.args[0].name} gets memory of another kind, or its own (by .data or set_)")
    memories = [storage(value) for _, _, value in _assignments(graph)]
    shared = {*map(storage, _arguments(graph))} | {m for m in memories if memories.count(m) > 1}
    for exchange, tensor, value in _assignments(graph):
        if storage(value) in shared:
            raise Unsupported(f"{tensor.name} gets the memory of {value.name}, which another tensor has")
        _check_former(exchange, tensor)
        _check_value(exchange, tensor, value)


def _exchanges(graph: fx.Graph) -> Iterator[fx.Node]:
    return (n for n in graph.nodes if n.target is assign)


def _assignments(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node, fx.Node]]:
    for node in _exchanges(graph):
        tensor, value = node.args
        assert isinstance(tensor, fx.Node) and isinstance(value, fx.Node)
        yield node, tensor, value


def _check_former(exchange: fx.Node, tensor: fx.Node) -> None:
    """What else has the memory that the tensor had keeps its numbers."""
    for node in exchange.graph.nodes:
        is_other = node is not tensor and node < exchange and storage(node) == storage(tensor)
        if is_other and any(exchange < user for user in node.users):
            raise Unsupported(f"{node.name}, a view of {tensor.name}, is read after that got other memory (by .data)")


def _check_value(exchange: fx.Node, tensor: fx.Node, value: fx.Node) -> None:
    """What is written later into the tensor, or into the value that it got, is seen in both."""
    memories = {storage(tensor), storage(value)}
    later = [n for n in exchange.graph.nodes if exchange < n]
    is_written = any(storage(x) in memories for n in later for x in written_nodes(n))
    for node in exchange.graph.nodes:
        users = [user for user in node.users if exchange < user] if storage(node) == storage(value) else []
        if users and (is_written or any(user.op == "output" for user in users)):
            raise Unsupported(f"{node.name} is written or returned after {tensor.name} got its memory (by .data)")
