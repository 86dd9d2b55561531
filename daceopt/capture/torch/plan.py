"""Decides where each result of a call comes from: an output of the program, or a view of what PyTorch would view."""

from __future__ import annotations

from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch.functional import Functional
from daceopt.capture.torch.gradient_scopes import hidden_arguments
from daceopt.capture.torch.strides import dense_order, layout
from daceopt.capture.torch.traced import Traced
from daceopt.errors import Unsupported
from daceopt.runtime import arithmetic
from daceopt.runtime.binding import Output, Result

_aten = torch.ops.aten

# views, of which autograd and their schemas know nothing
_UNSAFE = (_aten.unsafe_split.Tensor, _aten.unsafe_split_with_sizes.default)


class Plan:
    """What the program has to compute: ``nodes`` of the functional graph, one per output, the parts of the binding
    ``outputs``, ``results`` and ``mutations``, and conditions that have to hold (``asserted``), which are further
    outputs. Raises Unsupported for results of unknown kind.
    """

    def __init__(self, traced: Traced, functional: Functional) -> None:
        graph, hidden = functional.graph.graph, hidden_arguments(traced.graph.graph)
        values = list(graph.output_node().args[0])
        first, last = functional.results, functional.results + functional.asserted
        self._values, self.asserted, self._changed = values[:first], values[first:last], values[last:]
        self._mutated = functional.mutated
        self._arguments = {n: k for k, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
        self._places: dict[fx.Node, int] = {}  # of nodes among the outputs
        self.nodes: list[fx.Node] = []
        self.outputs: list[Output] = []
        self.mutations = [
            (argument, self._output(node, traced.changed[argument] and argument not in hidden))
            for argument, node in zip(self._mutated, self._changed, strict=True)
        ]
        bases = [self._base(r) if isinstance(r, fx.Node) else (None, ()) for r in self._values]
        self.results = [
            self._result(k, value, flag, sum(b is bases[k][0] for b, _ in bases) > 1)
            for k, (value, flag) in enumerate(zip(self._values, traced.results, strict=True))
        ]

    def _result(self, position: int, value: object, differentiable: bool, shared: bool) -> Result:
        if not isinstance(value, fx.Node):
            return Result("constant", value=_plain(value))
        if isinstance(value.meta.get("val"), (torch.SymInt, int)):
            return Result("size", value=_number_text(value.meta["val"]))
        first = self._values.index(value)
        if first < position:
            return Result("same", first)
        base, views = self._base(value)
        chain = tuple(_view_text(v) for v in views)
        if base in self._changed:
            return Result("input", self._mutated[self._changed.index(base)], views=chain)
        if base in self._arguments and self._arguments[base] not in self._mutated:
            return Result("input", self._arguments[base], views=chain)
        if base.op == "placeholder" or (not shared and _order(value) is not None):
            return Result("output", self._output(value, differentiable))
        return Result("output", self._output(base, differentiable), views=chain)

    def _base(self, node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]]:
        """The node whose memory ``node`` shares, and the operators in between, first to last.

        The new value of a changed input is such a node, although it may be a view of what was written into a view.
        """
        chain: list[fx.Node] = []
        while node not in self._changed and node.op == "call_function" and (node.target is getitem or _is_view(node)):
            source = node.args[0]
            if not isinstance(source, fx.Node) or (node.target is getitem and not _is_view(source)):
                break
            chain.append(node)
            node = source
        return node, tuple(reversed(chain))

    def _output(self, node: fx.Node, differentiable: bool) -> int:
        k = self._places.get(node)
        if k is None:
            k = self._places[node] = len(self.nodes)
            order = _order(node)
            rank = node.meta["val"].dim()
            self.nodes.append(node)
            axes = tuple(range(rank)) if order is None else order
            is_own = node not in self._changed  # an argument has its own strides
            strides = _strides(node, differentiable) if is_own else ()
            own = layout(node.meta["val"], axes) if is_own and not strides else ()
            self.outputs.append(Output(axes, differentiable, node.meta["val"].is_complex(), strides, own))
        elif differentiable and not self.outputs[k].differentiable:
            self.outputs[k] = replace(self.outputs[k], differentiable=True)
        return k


def _number_text(number: torch.SymInt | int) -> str:
    """A whole number as text over size symbols. Raises Unsupported for one that a call could not compute."""
    text = str(number)
    try:
        arithmetic.check(text)
    except ValueError as error:
        raise Unsupported(f"a number that forward returns: {error}") from None
    return text


def _plain(value: object) -> object:
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
    """The strides that PyTorch promises, where the elements are not one after another."""
    value = node.meta["val"]
    if dense_order(value) is not None:
        return ()
    if differentiable and 0 in value.stride():
        raise Unsupported(f"a result with a gradient whose elements share memory (strides {tuple(value.stride())})")
    return tuple(map(_argument, value.stride()))


def _argument(value: object) -> object:
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
