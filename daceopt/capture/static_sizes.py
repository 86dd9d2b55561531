"""Rewrites view and expand so that their sizes are numbers wherever PyTorch's own notation allows it."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

_VIEWS = {torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten._unsafe_view.default}


def use_static_sizes(module: GraphModule) -> None:
    """Edit ``module`` in place; sizes that nobody reads afterwards are removed.

    before:  view(x, [sym_size(x, 0), 128, -1, 64])      expand(x, [sym_size(y, 0), 8])
    after:   view(x, [-1, 128, 4, 64])                   expand(x, [-1, 8]) when x already has that extent
    """
    for node in module.graph.nodes:
        if node.target in _VIEWS:
            _set_sizes(node, _view_sizes(node.meta["val"].shape))
        elif node.target is torch.ops.aten.expand.default:
            _set_sizes(node, _expand_sizes(node.args[0].meta["val"].shape, node.meta["val"].shape))
    module.graph.eliminate_dead_code(_is_impure)
    module.recompile()


def _is_impure(node: Node) -> bool:
    """Only arithmetic on sizes is removed; every tensor operation stays."""
    return not (node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool))


def _set_sizes(node: Node, sizes: list[int] | None) -> None:
    if sizes is not None:
        node.args = (node.args[0], sizes, *node.args[2:])


def _view_sizes(shape: Any) -> list[int] | None:
    unknown = [d for d in shape if not isinstance(d, int)]
    if len(unknown) > 1 or (unknown and 0 in shape):
        return None
    return [d if isinstance(d, int) else -1 for d in shape]


def _expand_sizes(source: Any, shape: Any) -> list[int] | None:
    aligned = [None] * (len(shape) - len(source)) + list(source)
    sizes = [-1 if _same(a, d) and not isinstance(d, int) else d for a, d in zip(aligned, shape, strict=True)]
    return sizes if all(isinstance(size, int) for size in sizes) else None


def _same(a: Any, b: Any) -> bool:
    return a is not None and not isinstance(a, int) and not isinstance(b, int) and str(a.node) == str(b.node)
