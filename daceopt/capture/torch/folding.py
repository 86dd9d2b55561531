"""What of a traced graph is known now, computed by ATen itself: positions, masks and tables that models make anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.fake_tensors import unset_fake_temporarily

LIMIT = 1 << 16
"""Elements of the largest result that is kept as a constant; what is larger is cheaper to compute than to read."""

_aten = torch.ops.aten
# a value repeated is a view of one element, which fuses; folding would make an array of it
_REPEATED = frozenset(
    (_aten.full, _aten.zeros, _aten.ones, _aten.empty, _aten.expand, _aten.repeat, _aten.scalar_tensor)
)


def known_values(module: fx.GraphModule) -> dict[fx.Node, torch.Tensor]:
    """The values of the nodes that no argument of the graph and nothing random decides."""
    values: dict[fx.Node, torch.Tensor] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = getattr(module, str(node.target), None)
            if isinstance(value, torch.Tensor) and value.numel() <= LIMIT:
                values[node] = value
        elif node.op == "call_function" and _is_foldable(node, values):
            value = _compute(node, values)
            if value is not None:
                values[node] = value
    return values


def needs(values: dict[fx.Node, torch.Tensor]) -> set[fx.Node]:
    """Those of the known values that something unknown reads, itself or repeated."""
    needed: set[fx.Node] = set()
    for node in reversed(values):
        if any(user not in values or (user in needed and is_repeated(user)) for user in node.users):
            needed.add(node)
    return needed


def is_repeated(node: fx.Node) -> bool:
    """Whether the node only repeats a value."""
    return getattr(node.target, "overloadpacket", None) in _REPEATED


def _is_foldable(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> bool:
    value, target = node.meta.get("val"), node.target
    if not isinstance(target, torch_operators.OpOverload) or not isinstance(value, torch.Tensor) or value.is_complex():
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or target.namespace != "aten":
        return False
    static = all(isinstance(s, int) for s in value.shape) and value.numel() <= LIMIT
    return static and all(x in values for x in node.all_input_nodes)


def _compute(node: fx.Node, values: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    arguments: Any = fx.map_arg((node.args, node.kwargs), lambda x: values[x])
    with unset_fake_temporarily(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        try:
            value = node.target(*arguments[0], **arguments[1])
        except Exception:  # whatever is wrong with it comes to light when the program runs
            return None
    promised = node.meta["val"]
    fits = isinstance(value, torch.Tensor) and value.shape == promised.shape and value.dtype == promised.dtype
    return value if fits else None
