"""``torch.compile(model, backend="daceopt")``: each graph that Dynamo extracts becomes an optimized module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from daceopt.module import optimized_module


def daceopt(graph: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """The backend; ``torch.compile(..., options={...})`` takes the options of ``optimized_module``."""
    options = given.pop("options", {})
    module = DynamoGraph(graph, example_inputs)
    optimized_module(module, **{"dynamic": module.dynamic or None, **given, **options})
    return module


class DynamoGraph(nn.Module):
    """A graph of Dynamo as a module whose ``forward`` takes tensors only.

    Sizes that Dynamo passes beside the tensors are read from their shapes, and the model's buffers, which Dynamo
    passes like other inputs, are buffers here, because they may be changed in place. ``dynamic``: the axes that vary,
    as ``optimized_module`` takes them.
    """

    def __init__(self, graph: GraphModule, example_inputs: Sequence[Any]) -> None:
        super().__init__()
        self.train(graph.training)
        # A bound method, not a submodule: tracing would take the notes that a graph module keeps for the model's state.
        self.body = graph.forward
        shapes = _shapes(graph, example_inputs)
        self.sources = _sources(graph, example_inputs, shapes)
        positions = [k for k, kind in enumerate(self.sources) if kind == "tensor"]
        self.dynamic: dict[int, set[int]] = {}
        for position, k in enumerate(positions):
            axes = {a for a, size in enumerate(shapes[k]) if isinstance(size, torch.SymInt)}
            if axes:
                self.dynamic[position] = axes
        self._lock = threading.RLock()

    def __call__(self, *inputs: Any) -> Any:
        with self._lock:  # the buffers of one call at a time
            for k, kind in enumerate(self.sources):
                if kind == "buffer":
                    self._buffers[f"b{k}"] = inputs[k]
            return super().__call__(*[x for x, kind in zip(inputs, self.sources, strict=True) if kind == "tensor"])

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The graph's result; ``tensors`` are its inputs without buffers and sizes."""
        given = iter(tensors)
        arguments = [next(given) if kind == "tensor" else None for kind in self.sources]
        for k, kind in enumerate(self.sources):
            if kind == "buffer":
                arguments[k] = getattr(self, f"b{k}")
            elif isinstance(kind, tuple):
                tensor = arguments[kind[0]]
                assert tensor is not None
                arguments[k] = tensor.shape[kind[1]]
        return self.body(*arguments)


def _placeholders(graph: GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _shapes(graph: GraphModule, example_inputs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The symbolic shape of each input; the examples themselves may have numbers for shapes."""
    values = [n.meta.get("example_value", x) for n, x in zip(_placeholders(graph), example_inputs, strict=True)]
    return [tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in values]


def _sources(
    graph: GraphModule, example_inputs: Sequence[Any], shapes: Sequence[tuple[Any, ...]]
) -> list[str | tuple[int, int]]:
    """Per input of the graph: "tensor", "buffer", or the (input, axis) whose size it is."""
    sizes: dict[str, tuple[int, int]] = {}
    kinds: list[str | tuple[int, int]] = ["buffer" if _is_buffer(node) else "tensor" for node in _placeholders(graph)]
    for k, shape in enumerate(shapes):
        for axis, size in enumerate(shape if kinds[k] == "tensor" else ()):
            sizes.setdefault(str(size), (k, axis))
    for k, x in enumerate(example_inputs):
        if isinstance(x, torch.SymInt) and str(x) in sizes:
            kinds[k] = sizes[str(x)]
    return kinds


def _is_buffer(placeholder: torch.fx.Node) -> bool:
    argument = placeholder.meta.get("grapharg")
    return argument is not None and argument.source is not None and "_buffers[" in argument.source.name
