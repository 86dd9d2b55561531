"""What PyTorch's engine of autograd is doing in this thread: which backward runs, and what it asks for."""

from __future__ import annotations

from typing import Any

import torch

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


def wanted(context: Any) -> list[bool]:
    """Per tensor that a custom function was called with, whether the backward that runs wants a gradient by it."""
    return [node is not None and is_executed(node) for node, _ in context.next_functions]
