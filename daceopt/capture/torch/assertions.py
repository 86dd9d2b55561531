"""Assertions on numbers of a call, which Dynamo leaves in graphs: programs check them, and raise what Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import items
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.dynamo_tracing import current_translator
from daceopt.torch_internals.fake_tensors import FakeTensor

_UNSAID = "assertion error"
"""What Dynamo gives as the message of an assertion that has none."""


def assertion(condition: object, message: str = "") -> None:
    """The statement ``assert condition, message``; nothing is known of fake tensors."""
    if not isinstance(condition, FakeTensor) and not condition:
        raise AssertionError(*([] if message == _UNSAID else [message]))


fx.node.has_side_effect(assertion)
_MESSAGE = "daceopt_message"  # where an attempt of Dynamo keeps what the statement says that it is at
_CALLS = (
    torch_operators.assert_async,
    torch_operators.assert_true,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_async.default,
)


def note_message(original: Callable[..., bool], self: Any, *args: Any) -> bool:
    """Is Dynamo at an assertion? Then its message is kept for ``assert_relation``."""
    is_assertion = original(self, *args)
    setattr(self.output, _MESSAGE, self.stack[-1] if is_assertion else None)
    return is_assertion


def assert_relation(original: Callable[..., bool], self: Any, *place: object) -> bool:
    """A statement that asserts something of numbers that a graph has read is in the graph: Dynamo forgets it where
    one side is a float, and has an error of its own for it."""
    output = current_translator().output
    message = output.__dict__.pop(_MESSAGE, None)
    if message is None or not items.is_taken(output, self.expr):
        return original(self, *place)
    relation = next((n for n in reversed(output.graph.nodes) if _sym_node(n) is self), None)
    if relation is None:
        items.leave(output, torch.SymBool(self))
    else:
        output.create_node("call_function", assertion, (relation, message.as_python_constant()), {})
    return True


def _sym_node(node: fx.Node) -> object:
    return getattr(node.meta.get("example_value"), "node", None)


def as_statements(graph: fx.GraphModule) -> None:
    """Let a graph of Dynamo, where PyTorch runs it, raise an AssertionError as Python would, and at once."""
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and n.target in _CALLS]
    for node in calls:
        node.target = assertion
    if calls:
        graph.recompile()


def condition(*args: object, **kwargs: object) -> torch.Tensor:
    """What a call of ``assertion`` asks for, as a boolean tensor of rank 0."""
    holds: torch.Tensor = args[0] if args else kwargs["condition"]
    return holds.reshape(()) if holds.dtype is torch.bool else holds.reshape(()) != 0
