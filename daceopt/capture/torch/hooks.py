"""Hooks on tensors that forward computes: what a hook makes of the gradient is the rule of a marker."""

from __future__ import annotations

import torch
from torch import fx

from daceopt.capture.torch.custom_gradient import Backward, Slot, mark
from daceopt.capture.torch.writes import written_nodes
from daceopt.errors import Unsupported
from daceopt.torch_internals.torch_operators import register_hook_op


def check(graph: fx.GraphModule) -> None:
    """Raises Unsupported for hooks on a tensor that is read apart from its hook, needs no gradient, shares memory
    with one that is written, or is a result: the marker is another tensor than what it stands for."""
    nodes = list(graph.graph.nodes)
    hooks = [n for n in nodes if n.target is register_hook_op]
    for hook in hooks:
        hooked = hook.args[0]
        value = hooked.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            raise Unsupported(f"a hook on {hooked.name}, which requires no gradient")
        if set(hooked.users) != {hook}:
            raise Unsupported(f"a hook on {hooked.name}, which is read before it has the hook; register it at once")
        if any(n.op == "output" for n in hook.users):
            raise Unsupported(f"a hook on {hooked.name}, a result, whose later hooks would see its gradient before")
        if hooked in hooks:  # of what has been looked at
            continue
        others = [n for n in nodes if n is not hooked and n not in hooks and _shares(n, value)]
        if any(nodes.index(n) < nodes.index(hooked) for n in others):
            raise Unsupported(f"a hook on {hooked.name}, a view; register it on a clone")
        if any(map(written_nodes, others)):
            raise Unsupported(f"a hook on {hooked.name}, which is written into; register it on a clone")


def _shares(node: fx.Node, value: torch.Tensor) -> bool:
    example = node.meta.get("example_value")
    return isinstance(example, torch.Tensor) and example.untyped_storage()._cdata == value.untyped_storage()._cdata


def is_last(node: fx.Node) -> bool:
    """Whether no other hook is registered on the same tensor behind this one."""
    return not any(n.target is register_hook_op and n.args[0] is node for n in node.users)


def apply(tensor: torch.Tensor, body: fx.GraphModule, *values: object) -> torch.Tensor:
    """``tensor`` with the hook ``body``, a graph of its gradient and ``values``. Raises Unsupported for one that leaves
    the gradient as it is, which only has effects."""
    (result,) = body.graph.output_node().args
    if not any(isinstance(x, fx.Node) for x in (result if isinstance(result, (tuple, list)) else [result])):
        raise Unsupported("a hook on a tensor that gives no gradient")
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    slots = iter(range(len(tensors)))
    saved = tuple(Slot(next(slots)) if isinstance(v, torch.Tensor) else v for v in values)
    (marked,) = mark([tensor.detach()], [tensor], tensors, Backward(body, (None,), (0,), saved))
    return marked
