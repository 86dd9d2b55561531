"""What forward demands of its data, and raises an error for otherwise: programs check it, and raise what Python does.

``assert condition`` and ``if condition: raise ...`` are branches one side of which only raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import items
from daceopt.capture.torch.gradient_scopes import storage
from daceopt.capture.torch.writes import written_nodes
from daceopt.errors import WRONG_CALL, RunError
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.dynamo_tracing import SymNodeVariable, VariableTracker, current_backend
from daceopt.torch_internals.fake_tensors import FakeTensor
from daceopt.torch_internals.raising_branches import RaisingSide, class_at, is_branched_on, pass_by, raising_side

_ASSERTION_ERROR = "builtins:AssertionError"


def assertion(
    condition: object, arguments: tuple[object, ...] = (), error: str = _ASSERTION_ERROR, raises_if: bool = False
) -> None:
    """Raises the error where the condition is ``raises_if``; nothing is known of fake tensors.

    An ``error`` without a name is made from data: somebody repeats the call in eager PyTorch, which raises it.
    """
    if isinstance(condition, FakeTensor) or bool(condition) is not raises_if:
        return
    if error:
        raise class_at(error)(*arguments)
    unnamed = RunError("forward raises an error that it makes from data")
    setattr(unnamed, WRONG_CALL, True)
    raise unnamed


fx.node.has_side_effect(assertion)
_CALLS = (
    torch_operators.assert_async,
    torch_operators.assert_true,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_async.default,
)


def branch(original: Callable[..., None], self: Any, instruction: Any) -> None:
    """A branch on data, one side of which only raises, is a check in the graph."""
    value = self.stack[-1].realize()
    side = raising_side(self, instruction) if _is_of_data(self.output, value) else None
    if side is None or not _can_check(self.output, side):
        items.leave(self.output, getattr(value, "sym_num", None))
        original(self, instruction)
        return
    arguments = (value.as_proxy(), side.arguments, side.error, side.truth)
    self.output.create_proxy("call_function", assertion, arguments, {})
    pass_by(self, instruction, side)


def is_branch(translator: Any, value: VariableTracker) -> bool:
    """Is a boolean tensor of one element asked for its truth, by ``bool`` or ``item``, for a branch alone?"""
    if not value.is_tensor() or not is_branched_on(translator) or not _is_of_data(translator.output, value):
        return False
    return bool(value.as_proxy().node.meta["example_value"].dtype is torch.bool)


def _is_of_data(output: Any, value: VariableTracker) -> bool:
    """Is it one element, or a number that the graph has read?"""
    if len(output.tracers) != 1:
        return False
    if isinstance(value, SymNodeVariable):
        number = getattr(value.sym_num, "node", None)
        return number is not None and items.is_taken(output, number.expr)
    if not value.is_tensor():
        return False
    example = value.as_proxy().node.meta.get("example_value")
    is_plain = isinstance(example, torch.Tensor) and example.layout is torch.strided
    return is_plain and all(type(n) is int and n == 1 for n in example.shape)


def _can_check(output: Any, side: RaisingSide) -> bool:
    """Does a program that raises what the side does leave what the code leaves? What Python has done before, as far as
    Dynamo has traced it, is lost with the program; users rarely look at that behind an assertion."""
    is_told = side.error == _ASSERTION_ERROR or (bool(side.error) and output.side_effects.is_empty())
    return is_told or _is_repeated(output)


def _is_repeated(output: Any) -> bool:
    """Is a call in which the check fails made again, in eager PyTorch? Nothing may be changed by then."""
    if not getattr(current_backend(), "raises_again", False):
        return False
    arguments = {storage(n) for n in output.graph.nodes if n.op == "placeholder"}
    return arguments.isdisjoint(storage(x) for n in output.graph.nodes for x in written_nodes(n))


def as_statements(graph: fx.GraphModule) -> None:
    """Let a graph of Dynamo, where PyTorch runs it, raise an AssertionError as Python would, and at once."""
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and n.target in _CALLS]
    for node in calls:
        operands = (*node.args, *node.kwargs.values())
        node.target, node.args, node.kwargs = assertion, (operands[0], operands[1:]), {}
    if calls:
        graph.recompile()


def condition(
    holds: torch.Tensor, arguments: object = (), error: str = _ASSERTION_ERROR, raises_if: bool = False
) -> torch.Tensor:
    """What a call of ``assertion`` asks for, as a boolean tensor of rank 0."""
    truth = holds.reshape(()) if holds.dtype is torch.bool else holds.reshape(()) != 0
    return truth.logical_not() if raises_if else truth
