"""What PyTorch's autograd knows of this thread: the backward that runs, hooks, numbers of operations, versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd import graph as _graph

from daceopt.torch_internals.release import private_names

with private_names():
    # Whether the backward that runs in this thread leaves the graph for another one; True outside of any
    keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph

    # The number of the backward that runs in this thread, -1 outside of any
    current_task = torch._C._current_graph_task_id

    # Whether the backward that runs wants what a node gets. Raises RuntimeError for a leaf by which is differentiated,
    # and outside of any backward
    will_execute = torch._C._will_engine_execute_node

    # The number that the next node of autograd's graph gets in this thread
    next_sequence_number = torch._C._autograd._get_sequence_nr

    # The node of a graph of Dynamo's that reads ``tensor.data``
    data_of = torch._C._autograd._get_data_attr

    # The node of a graph of Dynamo's that switches gradients on and off
    set_grad_enabled = torch._C._set_grad_enabled

    # A block in which writes into tensors leave their versions
    unversioned_writes = torch.autograd._unsafe_preserve_version_counter

    _top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
    _queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
    _START = _graph._engine_run_backward.__code__
    _ = forward_ad._current_level  # changes with time: it is read where it is asked for

_INPUTS = 3  # among the arguments of ``_engine_run_backward``, behind roots, gradients of them and retain_graph


def saved_tensors_hooks() -> Any:
    """The innermost pair of hooks that a user's ``saved_tensors_hooks`` has put around saved tensors; None without."""
    return _top_hooks(True)


def call_after_backward(function: Callable[[], None]) -> None:
    """Let the backward that runs in this thread call ``function`` when it is over."""
    _queue(function)


def is_forward_differentiated() -> bool:
    """Whether a block of ``torch.autograd.forward_ad`` is active in this process."""
    return bool(forward_ad._current_level >= 0)


def inputs_of_backward(frame: FrameType | None) -> Sequence[Any] | None:
    """By which tensors, or edges of the graph, the backward that ``frame`` or one of its callers has started
    differentiates; empty for all leaves, None where none of them has."""
    while frame is not None and frame.f_code is not _START:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["args"][_INPUTS]
