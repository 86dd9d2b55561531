"""Which operands of one call have a gradient: PyTorch's own formulas say it, of fake tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx


def with_gradient(node: fx.Node, operands: Sequence[fx.Node]) -> Sequence[fx.Node]:
    """Those of ``operands`` that have a gradient by PyTorch's formula; all of them where it cannot be asked."""
    if node.op not in ("call_function", "call_method") or isinstance(node.target, torch._ops.HigherOrderOperator):
        return operands
    wanted = [x for x in operands if _requires_grad(x.meta.get("example_value"))]
    if not wanted:
        return operands
    try:
        found = _gradients(node, wanted)
    except Exception:  # a call with another's fake tensors may fail in any way
        return operands
    absent = {x for x, gradient in zip(wanted, found) if gradient is None}
    return [x for x in operands if x not in absent]


def _gradients(node: fx.Node, wanted: Sequence[fx.Node]) -> Sequence[torch.Tensor | None]:
    with wanted[0].meta["example_value"].fake_mode, torch.enable_grad(), torch.random.fork_rng(devices=[]):
        values = {x: _fresh(x.meta.get("example_value")) for x in node.all_input_nodes}
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda x: _written(values[x]))
        target = getattr(args[0], str(node.target)) if node.op == "call_method" else node.target
        rest = args[1:] if node.op == "call_method" else args
        results = [r for r in pytree.tree_leaves(target(*rest, **kwargs)) if _requires_grad(r)]
        grads = [torch.ones_like(r) for r in results]
        return torch.autograd.grad(results, [values[x] for x in wanted], grads, allow_unused=True)


def _fresh(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _written(value: Any) -> Any:
    """No leaf, so that the call may write into it."""
    return value.clone() if _requires_grad(value) else value


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
