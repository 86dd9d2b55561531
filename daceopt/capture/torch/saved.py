"""Values that backward needs and a call writes over: eager PyTorch raises in backward, and so does what we leave to it.

Dynamo ran each call of the graph on fake tensors, whose autograd graph saved what that of real ones does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from daceopt.capture.torch.writes import written
from daceopt.errors import Unsupported

_MODIFIED = "modified by an inplace operation"


def check(graph: fx.Graph) -> None:
    """Raise Unsupported, in the words of autograd, where backward needs what has been written over."""
    if not any(map(written, graph.nodes)):
        return
    ends = [*(n for n in graph.nodes if n.op == "placeholder"), *graph.output_node().all_input_nodes]
    for function in _functions([t for n in ends for t in tree_leaves(n.meta.get("example_value"))]):
        _check(function)


def _functions(tensors: list[Any]) -> Iterator[Any]:
    """All of autograd's functions behind these tensors."""
    waiting = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor)]
    seen = {None}
    while waiting:
        function = waiting.pop()
        if function not in seen:
            seen.add(function)
            yield function
            waiting.extend(f for f, _ in function.next_functions)


def _check(function: Any) -> None:
    try:
        for name in dir(type(function)):
            if name.startswith("_raw_saved_") or name == "saved_tensors":  # what else is saved are numbers
                getattr(function, name.removeprefix("_raw"), None)
    except RuntimeError as error:
        if _MODIFIED in str(error):
            raise Unsupported(f"backward raises: {str(error).splitlines()[0]}") from None
