"""A graph of Dynamo as it reaches the compiler; imports neither DaCe nor ONNX, for a warm start makes one, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class Traced:
    """A graph of Dynamo with what is known of its arguments, in the order of its placeholders.

    ``inputs``: fake tensors and symbolic or plain sizes that no trace has seen; ``requires_grad`` and ``names`` per
    input; ``results``: per result, whether it requires a gradient, ``changed`` the same per argument after the call.
    ``is_state``: whether an argument is a parameter or buffer. ``draws``: the numbers of the calls that draw random
    numbers, in their order, where they are not those of this graph alone: a part of a graph draws what the whole draws.
    ``waiting``: parameters among the arguments to which it gives no gradient, but which the update by it must not leave
    out.
    """

    graph: fx.GraphModule
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    requires_grad: tuple[bool, ...]
    results: tuple[bool, ...]
    changed: tuple[bool, ...]
    is_state: tuple[bool, ...]
    draws: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()

    @property
    def device(self) -> str:
        """Where the arrays of the graph are: those of its arguments. Numbers may be the host's."""
        tensors = [x for x in self.inputs if isinstance(x, torch.Tensor)]
        deciding = next((t for t in tensors if t.ndim), tensors[0] if tensors else None)
        return "cpu" if deciding is None else str(deciding.device.type)

    def check_unchanged(self, changed: Sequence[int]) -> None:
        """Raise RuntimeError where the graph, which is run later than the call was made, reads one of the arguments
        ``changed``, which have been written into since."""
        placeholders = [n for n in self.graph.graph.nodes if n.op == "placeholder"] if changed else []
        for k in changed:
            if placeholders[k].users:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"{self.names[k]}, from which gradients are computed, was written into since"
                )
