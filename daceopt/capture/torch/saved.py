"""Values that backward needs and a call writes over: eager PyTorch raises in backward, and so does what we leave to it.

Dynamo ran each call of the graph on fake tensors, whose autograd graph saved what that of real ones does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import exchanges
from daceopt.capture.torch.gradient_scopes import storage
from daceopt.capture.torch.writes import SEQUENCE, written_nodes
from daceopt.errors import Unsupported
from daceopt.torch_internals.pytree import tree_leaves

_MODIFIED = "modified by an inplace operation"


def check(graph: fx.Graph) -> None:
    """Raise Unsupported where backward needs what has been written over: in the words of autograd, which does not see a
    write by ``.data``, and computes with what is there then."""
    if not any(map(written_nodes, graph.nodes)):
        return
    functions = _functions_of(graph)
    for function in functions:
        _check(function)
    for write, operand in exchanges.behind(graph):
        _check_behind(write, operand, functions)


def _check_behind(write: fx.Node, operand: fx.Node, functions: list[Any]) -> None:
    same = [n for n in write.graph.nodes if storage(n) == storage(operand)]
    memories = {_memory(n.meta["example_value"]) for n in same}
    custom = [n for n in write.graph.nodes if n.target is torch.ops.higher_order.autograd_function_apply and n < write]
    if any(x in same for n in custom for x in n.all_input_nodes):
        raise Unsupported(
            f"a custom autograd.Function reads {same[0].name} before a later write by .data; write before"
        )
    for function in functions:
        is_before = function._sequence_nr() < write.meta.get(SEQUENCE, 0)
        if is_before and any(_memory(t) in memories for t in _saved_values(function) if isinstance(t, torch.Tensor)):
            raise Unsupported(f"backward reads {same[0].name} as it is after a later write by .data; write before")


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _functions_of(graph: fx.Graph) -> list[Any]:
    ends = [*(n for n in graph.nodes if n.op == "placeholder"), *graph.output_node().all_input_nodes]
    return list(_functions([t for n in ends for t in tree_leaves(n.meta.get("example_value"))]))


def _functions(tensors: list[Any]) -> Iterator[Any]:
    """All of autograd's functions behind these tensors."""
    waiting = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor)]
    visited = {None}
    while waiting:
        function = waiting.pop()
        if function not in visited:
            visited.add(function)
            yield function
            waiting.extend(f for f, _ in function.next_functions)


def _check(function: object) -> None:
    try:
        list(_saved_values(function))
    except RuntimeError as error:
        if _MODIFIED in str(error):
            raise Unsupported(f"backward raises: {str(error).splitlines()[0]}") from None


def _saved_values(function: object) -> Iterator[Any]:
    for name in dir(type(function)):
        if name.startswith("_raw_saved_") or name == "saved_tensors":  # what else is saved are numbers
            yield from tree_leaves(getattr(function, name.removeprefix("_raw"), None))
