"""Assertions on numbers of a call, which Dynamo leaves in graphs: programs check them, and raise what Python does."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

_UNSAID = "assertion error"
"""What Dynamo gives as the message of an assertion that has none."""


def asserted(condition: Any, message: str = "") -> None:
    """The statement ``assert condition, message``; nothing is known of fake tensors."""
    if not isinstance(condition, FakeTensor) and not condition:
        raise AssertionError(*([] if message == _UNSAID else [message]))


fx.node.has_side_effect(asserted)
_CALLS = (torch._assert_async, torch._assert, torch.ops.aten._assert_async.msg, torch.ops.aten._assert_async.default)


def as_statements(graph: fx.GraphModule) -> None:
    """Let a graph of Dynamo, where PyTorch runs it, raise an AssertionError as Python would, and at once."""
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and n.target in _CALLS]
    for node in calls:
        node.target = asserted
    if calls:
        graph.recompile()


def condition(*args: Any, **kwargs: Any) -> torch.Tensor:
    """What a call of ``asserted`` asks for, as a boolean tensor of rank 0."""
    found: torch.Tensor = args[0] if args else kwargs["condition"]
    return found.reshape(()) if found.dtype is torch.bool else found.reshape(()) != 0
