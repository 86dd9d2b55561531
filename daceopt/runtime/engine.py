"""What PyTorch's engine of autograd is doing in this thread: which backward runs, and what it asks for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd import graph as autograd_graph

# Whether the backward that runs in this thread leaves the graph for another one; True outside of any
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph

# The number of the backward that runs in this thread
task = torch._C._current_graph_task_id


def is_executed(node: Any) -> bool:
    """Whether the backward that runs wants what a node gets: ``autograd.grad`` asks for few gradients of many."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf by which is differentiated; or no backward runs
        return True


def inputs() -> Sequence[Any] | None:
    """By which tensors, or edges of the graph, the backward that runs in this thread differentiates; empty for all
    leaves. PyTorch does not tell, but the call that has started it stands on this thread's stack; None where it does
    not, as in threads of devices."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _START:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["args"][_INPUTS]


_START = autograd_graph._engine_run_backward.__code__
_INPUTS = 3  # among its arguments, behind gradients of the results, retain_graph and create_graph


def gradients_wanted(context: Any, operands: Sequence[torch.Tensor]) -> list[bool]:
    """Per tensor that a custom function was called with, ``operands``, whether the backward that runs wants a gradient
    by it."""
    leaves = {id(x) for x in inputs() or ()}  # to be told of a leaf among them is an error, which takes long
    return [
        node is not None and (id(operand) in leaves or is_executed(node))
        for (node, _), operand in zip(context.next_functions, operands)
    ]
