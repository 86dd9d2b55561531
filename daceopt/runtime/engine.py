"""What the backward that runs in this thread asks for, of PyTorch's engine of autograd."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from daceopt.torch_internals.autograd_engine import inputs_of_backward, will_execute


def is_executed(node: torch.autograd.graph.Node) -> bool:
    """Whether the backward that runs wants what a node gets: ``autograd.grad`` asks for few gradients of many."""
    try:
        return bool(will_execute(node))
    except RuntimeError:  # a leaf by which is differentiated; or no backward runs
        return True


def inputs() -> Sequence[torch.Tensor] | None:
    """By which tensors, or edges of the graph, the backward that runs in this thread differentiates; empty for all
    leaves. PyTorch does not tell, but the call that has started it stands on this thread's stack; None where it does
    not, as in threads of devices."""
    return inputs_of_backward(sys._getframe())


def gradients_wanted(context: torch.autograd.function.FunctionCtx, operands: Sequence[torch.Tensor]) -> list[bool]:
    """Per tensor that a custom function was called with, ``operands``, whether the backward that runs wants a gradient
    by it."""
    leaves = {id(x) for x in inputs() or ()}  # to be told of a leaf among them is an error, which takes long
    return [
        node is not None and (id(operand) in leaves or is_executed(node))
        for (node, _), operand in zip(context.next_functions, operands)
    ]
