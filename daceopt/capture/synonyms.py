"""Operators that are another operator by a different name get the name that the exporter knows.

It would get there by decomposing, for which it traces the whole program again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_SAME_ARGUMENTS = {
    _ATEN.__and__.Tensor: _ATEN.bitwise_and.Tensor,
    _ATEN.__or__.Tensor: _ATEN.bitwise_or.Tensor,
    _ATEN.__xor__.Tensor: _ATEN.bitwise_xor.Tensor,
    _ATEN.min.other: _ATEN.minimum.default,
    _ATEN.max.other: _ATEN.maximum.default,
}
_CONVERSIONS = {getattr(_ATEN.to, form) for form in _ATEN.to.overloads()}


def use_known_names(module: GraphModule) -> None:
    """Edit ``module`` in place.

    before:  min(a, b)         adaptive_avg_pool2d(x, [1, 1])
    after:   minimum(a, b)     mean(x, [-2, -1], keepdim=True)
    """
    for node in module.graph.nodes:
        if node.target in _SAME_ARGUMENTS:
            node.target = _SAME_ARGUMENTS[node.target]
        elif node.target in _CONVERSIONS:
            _converted(node)
        elif node.target in _REWRITES and not node.kwargs:
            _REWRITES[node.target](node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _converted(node: Node) -> None:
    """All forms of ``to`` change the type, or nothing: programs run on one device and in one layout."""
    source = node.args[0]
    assert isinstance(source, Node)
    dtype = node.meta["val"].dtype
    if source.meta["val"].dtype == dtype and not _is_returned(node):
        node.replace_all_uses_with(source)
        return
    node.target, node.args, node.kwargs = _ATEN._to_copy.default, (source,), {"dtype": dtype}


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _pool_to_one(node: Node) -> None:
    sizes = node.args[1]
    assert isinstance(sizes, list | tuple)
    if all(isinstance(size, int) and size == 1 for size in sizes):
        node.target = _ATEN.mean.dim
        node.args = (node.args[0], list(range(-len(sizes), 0)), True)


def _transposed_convolution(node: Node) -> None:
    """x, weight, bias, stride, padding, output_padding, groups, dilation"""
    axes = node.meta["val"].ndim - 2
    defaults: tuple[Any, ...] = (None, 1, 0, 0, 1, 1)
    given = (*node.args[2:], *defaults[len(node.args) - 2 :])
    bias, stride, padding, added, groups, dilation = given
    stride, padding, added, dilation = (_per_axis(v, axes) for v in (stride, padding, added, dilation))
    node.target = _ATEN.convolution.default
    node.args = (node.args[0], node.args[1], bias, stride, padding, dilation, True, added, groups)


def _per_axis(value: Any, axes: int) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * axes if len(values) == 1 else values


_REWRITES: dict[Any, Callable[[Node], None]] = {
    _ATEN.adaptive_avg_pool1d.default: _pool_to_one,
    _ATEN.adaptive_avg_pool2d.default: _pool_to_one,
    _ATEN.conv_transpose1d.default: _transposed_convolution,
    _ATEN.conv_transpose2d.input: _transposed_convolution,
    _ATEN.conv_transpose3d.input: _transposed_convolution,
}
