"""Which arguments of a graph autograd connects with which of its results.

Where no gradient is computed, that of a connected argument is zero, and any other has none at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from daceopt.runtime.binding import Binding

if TYPE_CHECKING:
    from daceopt.capture.torch.importing import Traced


def connected(traced: Traced, binding: Binding) -> dict[int, frozenset[int]]:
    """Per argument that requires a gradient, the outputs of the program that depend on it."""
    graph = traced.graph.graph
    arguments = [n for n in graph.nodes if n.op == "placeholder"]
    reached: dict[int, set[fx.Node]] = {}
    for result, found, flag in zip(graph.output_node().args[0], binding.results, traced.results, strict=True):
        if flag and found.kind == "output":
            reached.setdefault(found.index, set()).update(_sources(result))
    for argument, output in binding.mutations:
        reached.setdefault(output, set()).update(_sources(arguments[argument]))
    return {
        k: frozenset(output for output, sources in reached.items() if node in sources)
        for k, node in enumerate(arguments)
        if traced.requires_grad[k]
    }


def _sources(result: fx.Node) -> set[fx.Node]:
    """All nodes on which ``result`` depends differentiably."""
    found: set[fx.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node in found or not _carries(node):
            continue
        found.add(node)
        waiting.extend(_operands(node))
        for alias in _aliases(node):
            waiting.extend(x for user in alias.users if _writes(user, alias) for x in user.all_input_nodes)
    return found


def _operands(node: fx.Node) -> Sequence[fx.Node]:
    """Its inputs, without those for which a custom autograd.Function returns no gradient."""
    if node.target is not torch.ops.higher_order.autograd_function_apply:
        return node.all_input_nodes
    graph = node.graph.owning_module
    assert graph is not None
    backward = getattr(graph, str(node.args[1].target))  # type: ignore[union-attr]
    grads = backward.graph.output_node().args[0]
    grads = grads if isinstance(grads, (list, tuple)) else [grads]
    return [x for x, g in zip(node.args[2:], grads) if isinstance(x, fx.Node) and g is not None]


def _aliases(node: fx.Node) -> Iterator[fx.Node]:
    """The node and what may be a view of it: what is written into a view is written into the node."""
    yield node
    for user in node.users:
        if user.args and user.args[0] is node and not _writes(user, node):
            yield user


def _writes(node: fx.Node, target: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name in ("setitem", "iadd", "isub", "imul", "itruediv", "ipow")
    in_place = in_place or (name.endswith("_") and not name.endswith("__"))
    return in_place and bool(node.args) and node.args[0] is target


def _carries(node: fx.Node) -> bool:
    """Whether it requires a gradient; in a graph of ATen's, which does not say, whether it could."""
    if "example_value" in node.meta:
        return any(v.requires_grad for v in _tensors(node.meta["example_value"]))
    name = str(node.target)
    stops = "detach" in name or "stop_gradient" in name
    return not stops and any(v.is_floating_point() or v.is_complex() for v in _tensors(node.meta.get("val")))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []
