"""Decides where each result of a call comes from: an output of the program, or a view of what PyTorch would view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch.functional import Functional
from daceopt.capture.torch.gradient_scopes import hidden_arguments
from daceopt.capture.torch.strides import dense_order, layout
from daceopt.capture.torch.traced import Traced
from daceopt.errors import Unsupported
from daceopt.runtime.binding import Output, Result

_aten = torch.ops.aten

# views, of which autograd and their schemas know nothing
_UNSAFE = (_aten.unsafe_split.Tensor, _aten.unsafe_split_with_sizes.default)


@dataclass
class Plan:
    """What the program has to compute: ``nodes`` of the functional graph, one per output, the binding's parts, and
    conditions that have to hold, which are further outputs."""

    nodes: list[fx.Node]
    outputs: list[Output]
    results: list[Result]
    mutations: list[tuple[int, int]]
    asserted: list[fx.Node]


def plan(functional: Functional, differentiable: Sequence[bool], changed_with_gradient: Sequence[bool]) -> Plan:
    """Decide where each result comes from.

    ``differentiable``: per result, whether it requires a gradient; ``changed_with_gradient``: the same per changed
    input. Raises Unsupported for results of unknown kind.
    """
    return _Planner(functional).run(differentiable, changed_with_gradient)


def plan_of(traced: Traced, functional: Functional) -> Plan:
    """``plan`` of a graph of Dynamo, whose functional graph is ``found``."""
    hidden = hidden_arguments(traced.graph.graph)
    return plan(functional, traced.results, [traced.changed[k] and k not in hidden for k in functional.mutated])


class _Planner:
    def __init__(self, functional: Functional) -> None:
        graph = functional.graph.graph
        values = list(graph.output_node().args[0])
        first, last = functional.results, functional.results + functional.asserted
        self.results, asserted, self.changed = values[:first], values[first:last], values[last:]
        self.mutated = functional.mutated
        self.arguments = {n: k for k, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
        self.outputs: dict[fx.Node, int] = {}
        self.plan = Plan([], [], [], [], asserted)

    def run(self, differentiable: Sequence[bool], changed_with_gradient: Sequence[bool]) -> Plan:
        for argument, node, flag in zip(self.mutated, self.changed, changed_with_gradient, strict=True):
            self.plan.mutations.append((argument, self._output(node, flag)))
        bases = [self._base(r) if isinstance(r, fx.Node) else (None, ()) for r in self.results]
        for k, (value, flag) in enumerate(zip(self.results, differentiable, strict=True)):
            shared = sum(b is bases[k][0] for b, _ in bases) > 1
            self.plan.results.append(self._result(k, value, flag, shared))
        return self.plan

    def _result(self, position: int, value: Any, differentiable: bool, shared: bool) -> Result:
        if not isinstance(value, fx.Node):
            return Result("constant", value=_plain(value))
        if isinstance(value.meta.get("val"), (torch.SymInt, int)):
            return Result("size", value=str(value.meta["val"]))
        first = self.results.index(value)
        if first < position:
            return Result("same", first)
        base, views = self._base(value)
        chain = tuple(_view_text(v) for v in views)
        if base in self.changed:
            return Result("input", self.mutated[self.changed.index(base)], views=chain)
        if base in self.arguments and self.arguments[base] not in self.mutated:
            return Result("input", self.arguments[base], views=chain)
        if base.op == "placeholder" or (not shared and _order(value) is not None):
            return Result("output", self._output(value, differentiable))
        return Result("output", self._output(base, differentiable), views=chain)

    def _base(self, node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]]:
        """The node whose memory ``node`` shares, and the operators in between, first to last.

        The new value of a changed input is such a node, although it may be a view of what was written into a view.
        """
        chain: list[fx.Node] = []
        while node not in self.changed and node.op == "call_function" and (node.target is getitem or _is_view(node)):
            source = node.args[0]
            if not isinstance(source, fx.Node) or (node.target is getitem and not _is_view(source)):
                break
            chain.append(node)
            node = source
        return node, tuple(reversed(chain))

    def _output(self, node: fx.Node, differentiable: bool) -> int:
        k = self.outputs.get(node)
        if k is None:
            k = self.outputs[node] = len(self.plan.nodes)
            order = _order(node)
            rank = node.meta["val"].dim()
            self.plan.nodes.append(node)
            axes = tuple(range(rank)) if order is None else order
            is_own = node not in self.changed  # an argument has its own strides
            strides = _strides(node, differentiable) if is_own else ()
            own = layout(node.meta["val"], axes) if is_own and not strides else ()
            self.plan.outputs.append(Output(axes, differentiable, node.meta["val"].is_complex(), strides, own))
        elif differentiable and not self.plan.outputs[k].differentiable:
            self.plan.outputs[k] = replace(self.plan.outputs[k], differentiable=True)
        return k


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Unsupported(f"a result of type {type(value).__name__}")


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns or not schema.arguments:
        return False
    if node.target is _aten.dropout.default:
        return not node.args[2]
    if node.target in _UNSAFE:
        return True
    # _reshape_alias and the like alias; what only may alias (contiguous, reshape) was resolved by the trace
    return all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _view_text(node: fx.Node) -> tuple[str, list[Any]]:
    """A view operator and its arguments after the tensor, as plain data; sizes and types as text."""
    if node.target is getitem:
        return "getitem", [node.args[1]]
    if node.kwargs:
        raise Unsupported(f"a result is a view by {node.target} with keyword arguments")
    return str(node.target), [_argument(a) for a in node.args[1:]]


def _strides(node: fx.Node, differentiable: bool) -> tuple[Any, ...]:
    """The strides that PyTorch promises, where the elements do not stand one after another."""
    value = node.meta["val"]
    if dense_order(value) is not None:
        return ()
    if differentiable and 0 in value.stride():
        raise Unsupported(f"a result with a gradient whose elements share memory (strides {tuple(value.stride())})")
    return tuple(map(_argument, value.stride()))


def _argument(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_argument(v) for v in value]
    if isinstance(value, (fx.Node, torch.SymInt)):
        return {"size": str(value.meta["val"] if isinstance(value, fx.Node) else value)}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, torch.dtype):
        return {"type": str(value).removeprefix("torch.")}
    raise Unsupported(f"a result is a view with an argument of type {type(value).__name__}")


def _order(node: fx.Node) -> tuple[int, ...] | None:
    return dense_order(node.meta["val"])
