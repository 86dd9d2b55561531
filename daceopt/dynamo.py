"""``torch.compile(model, backend="daceopt")``: each graph that Dynamo extracts becomes an optimized module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from daceopt.module import optimized_module


def daceopt(graph: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend; ``options`` are those of ``optimized_module``, given as ``torch.compile(..., options={...})``."""
    given = options.pop("options", None) or {}
    module = _TensorGraph(graph, example_inputs)
    optimized_module(module, dynamic=module.dynamic or None, **{**options, **given})
    return module


class _TensorGraph(nn.Module):
    """A Dynamo graph as a function of tensors: the sizes that Dynamo passes beside them are read from their shapes."""

    def __init__(self, graph: GraphModule, example_inputs: Sequence[Any]) -> None:
        super().__init__()
        self.graph = graph
        self.train(graph.training)
        self.tensors = [k for k, x in enumerate(example_inputs) if isinstance(x, torch.Tensor)]
        self.dynamic: dict[int, set[int]] = {}
        self.sizes: dict[int, tuple[int, int]] = {}
        symbols: dict[str, tuple[int, int]] = {}
        for position, k in enumerate(self.tensors):
            for axis, size in enumerate(example_inputs[k].shape):
                if isinstance(size, torch.SymInt):
                    self.dynamic.setdefault(position, set()).add(axis)
                    symbols.setdefault(str(size), (position, axis))
        for k, x in enumerate(example_inputs):
            if isinstance(x, torch.SymInt) and str(x) in symbols:
                self.sizes[k] = symbols[str(x)]

    def __call__(self, *inputs: Any) -> Any:
        return super().__call__(*[x for k, x in enumerate(inputs) if k not in self.sizes])

    def forward(self, *inputs: Any) -> Any:
        given = iter(inputs)
        count = len(inputs) + len(self.sizes)
        arguments = [None if k in self.sizes else next(given) for k in range(count)]
        for k, (position, axis) in self.sizes.items():
            arguments[k] = arguments[self.tensors[position]].shape[axis]  # type: ignore[union-attr]
        return self.graph(*arguments)
