"""Views of attention's result are made independent of its memory layout, which PyTorch chooses anew at each tracing."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_VIEWS = {_ATEN.view.default, _ATEN._unsafe_view.default}
_ALIASES = {*_VIEWS, _ATEN.clone.default, _ATEN.transpose.int, _ATEN.permute.default}


def fix_attention_layout(module: GraphModule) -> None:
    """Edit ``module`` in place.

    before:  view(transpose(scaled_dot_product_attention(q, k, v)))
    after:   view(contiguous(transpose(scaled_dot_product_attention(q, k, v))))

    Which kernel PyTorch picks, and with it the strides of the result, depends on whether gradients are recorded; a view
    that was legal when the call was traced may not be so when the exporter traces its graph.
    """
    for node in module.graph.nodes:
        if node.target in _VIEWS and _is_attention(node.args[0]):
            _copy_source(node)
    module.recompile()


def _is_attention(node: object) -> bool:
    while isinstance(node, Node) and node.target in _ALIASES:
        node = node.args[0]
    return isinstance(node, Node) and node.target is _ATEN.scaled_dot_product_attention.default


def _copy_source(view: Node) -> None:
    source = view.args[0]
    assert isinstance(source, Node)
    with view.graph.inserting_before(view):
        copied = view.graph.call_function(_ATEN.clone.default, (source,), {"memory_format": torch.contiguous_format})
    copied.meta["val"] = source.meta["val"].contiguous()
    view.args = (copied, *view.args[1:])
