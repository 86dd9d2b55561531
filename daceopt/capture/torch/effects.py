"""What a graph of Dynamo sets in PyTorch and leaves set, beside its results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import fx

Effect = Callable[[], Any]


def lasting(graph: fx.Graph) -> list[Effect]:
    """The last call that sets each thing. A program computes as they say, but does not make them."""
    last = {(node.target, node.args[:-1]): partial(node.target, *node.args) for node in graph.nodes if _sets(node)}
    return list(last.values())


def _sets(node: fx.Node) -> bool:
    name = getattr(node.target, "__name__", "").removeprefix("_")
    return node.op == "call_function" and name.startswith("set_") and not node.all_input_nodes
