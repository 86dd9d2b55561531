"""Which operands of one call have a gradient: PyTorch's own formulas say it, of fake tensors."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import fx

from daceopt.torch_internals.pytree import tree_leaves
from daceopt.torch_internals.torch_operators import HigherOrderOperator


class OperandGradients:
    """Asks for the calls of one graph, once for each kind of call: those of equal layers have equal answers."""

    def __init__(self) -> None:
        self._absent: dict[Hashable, frozenset[int]] = {}

    def with_gradient(self, node: fx.Node, operands: Sequence[fx.Node]) -> Sequence[fx.Node]:
        """Those of ``operands`` that have a gradient by PyTorch's formula; all of them where it cannot be asked.

        For one of several results of a call they are the call's operands: each may depend on others (of ``meshgrid``).
        """
        call, path = _origin(node)
        if call.op not in ("call_function", "call_method") or isinstance(call.target, HigherOrderOperator):
            return operands
        operands_of = call.all_input_nodes if path else operands
        kind = _kind(call, path)
        if kind not in self._absent:
            self._absent[kind] = _without_gradient(call, path)
        absent = {call.all_input_nodes[k] for k in self._absent[kind]}
        return [x for x in operands_of if x not in absent]


def _kind(call: fx.Node, path: tuple[int, ...]) -> Hashable:
    """Equal for equal calls of equal kinds of operands. Sizes count: formulas give nothing for what has no elements."""
    positions = {x: k for k, x in enumerate(call.all_input_nodes)}
    values = [x.meta.get("example_value") for x in positions]
    kinds = tuple((str(v.shape), v.dtype, v.requires_grad) if isinstance(v, torch.Tensor) else None for v in values)
    return call.target, path, kinds, repr(fx.map_arg((call.args, call.kwargs), lambda x: _Operand(positions[x])))


class _Operand(NamedTuple):
    position: int


def _without_gradient(call: fx.Node, path: tuple[int, ...]) -> frozenset[int]:
    """The positions of operands that require a gradient and get none; none of them where PyTorch cannot be asked."""
    operands = call.all_input_nodes
    differentiable = [x for x in operands if _requires_grad(x.meta.get("example_value"))]
    if not differentiable:
        return frozenset()
    try:
        gradients = _gradients(call, path, differentiable)
    except Exception:  # a call with another's fake tensors may fail in any way
        return frozenset()
    return frozenset(operands.index(x) for x, gradient in zip(differentiable, gradients) if gradient is None)


def _origin(node: fx.Node) -> tuple[fx.Node, tuple[int, ...]]:
    """The call of which a tensor is a result, and where it is among several."""
    path: tuple[int, ...] = ()
    while node.target is operator.getitem and isinstance(_value(node.args[0]), (tuple, list)):
        path = (node.args[1], *path)
        node = node.args[0]
    return node, path


def _gradients(call: fx.Node, path: tuple[int, ...], wrt: Sequence[fx.Node]) -> Sequence[torch.Tensor | None]:
    with wrt[0].meta["example_value"].fake_mode, torch.enable_grad(), torch.random.fork_rng(devices=[]):
        values = {x: _fresh(x.meta.get("example_value")) for x in call.all_input_nodes}
        args, kwargs = fx.map_arg((call.args, call.kwargs), lambda x: _to_written(values[x]))
        target = getattr(args[0], str(call.target)) if call.op == "call_method" else call.target
        rest = args[1:] if call.op == "call_method" else args
        outcome = reduce(operator.getitem, path, target(*rest, **kwargs))
        results = [r for r in tree_leaves(outcome) if _requires_grad(r)]
        grads = [torch.ones_like(r) for r in results]
        return torch.autograd.grad(results, [values[x] for x in wrt], grads, allow_unused=True)


def _value(node: object) -> object:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _fresh(value: object) -> object:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _to_written(value: Any) -> object:
    """No leaf, so that the call may write into it."""
    return value.clone() if _requires_grad(value) else value


def _requires_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
