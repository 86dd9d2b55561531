"""What a session starts from: the captured graph of a model, with the values of its inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from daceopt.codegen import target
from daceopt.errors import CaptureError, DaceoptError
from daceopt.ir.control.imported import Gradients
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType
from daceopt.modules.captured import CapturedGraph, capture_graphs
from daceopt.modules.observe import Observed
from daceopt.modules.options import Options
from daceopt.passes.feeds import random_inputs
from daceopt.runtime.places import device_of
from daceopt.runtime.tensors import as_tensor, to_numpy, torch_dtype
from daceopt.transformations.coarse.device_placement import DevicePlacement

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Subject:
    """A program before its recipe; ``tensors`` are its inputs by position, contiguous; ``names``: what the model calls
    its arrays at the boundary, by role (``input:0``); ``state``: which inputs are the model's own parameters and
    buffers."""

    title: str
    program: Program
    tensors: Mapping[int, torch.Tensor]
    names: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    state: frozenset[int] = frozenset()

    @property
    def trains(self) -> bool:
        return self.program.gradients is not None

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return device_of(self.tensors.values())

    def values(self) -> dict[str, np.ndarray]:
        """The inputs by the names of their arrays, as the interpreter takes them."""
        graph = self.program.forward
        return {n: _array(self.tensors[k], graph.dtype(n)) for k, n in enumerate(graph.inputs)}

    def sizes(self) -> dict[str, int]:
        """The values of the size symbols."""
        graph = self.program.forward
        position = {name: k for k, name in enumerate(graph.inputs)}
        return {s: int(self.tensors[position[n]].shape[axis]) for s, (n, axis) in graph.symbols.items()}


def subject_of(
    model: object, inputs: Sequence[object], kwargs: Mapping[str, object], backward: bool | None, graph: int | None
) -> Subject:
    """Capture ``model``; see :func:`daceopt.explore.session.session.explore`."""
    if isinstance(model, nn.Module):
        return _of_module(model, inputs, kwargs, backward, graph)
    if kwargs:
        raise TypeError(f"keyword arguments are for modules; found {', '.join(kwargs)}")
    if isinstance(model, Graph):
        return _of_graph(model.name, model.copy(), inputs, backward)
    if hasattr(model, "source"):  # what from_onnx returns
        model = model.source
    if isinstance(model, str | os.PathLike | bytes) or hasattr(model, "graph"):
        return _of_onnx(model, inputs, backward)
    expected = "an nn.Module, an ONNX file, what from_onnx returns, or a Graph"
    raise TypeError(f"explore takes {expected}, not {type(model).__name__}")


def _of_module(
    model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], backward: bool | None, which: int | None
) -> Subject:
    own_options = getattr(getattr(model, "daceopt", None), "options", None) or Options()
    options = replace(own_options, backward=own_options.backward if backward is None else backward, fallback="silent")
    captured = capture_graphs(model, args, kwargs, options)
    one = captured.graphs[_choose(type(model).__name__, captured, which)]
    graph = one.imported.graph
    names = {f"input:{k}": name for k, name in enumerate(one.names)}
    names |= {f"output:{k}": f"output {k}" for k in range(len(graph.outputs))}
    notes = list(map(str, [*captured.breaks, *captured.refused]))
    program = Program.of(graph, one.imported.gradients)
    return Subject(type(model).__name__, program, dict(enumerate(one.tensors)), names, notes, one.state)


def _choose(title: str, captured: Observed[CapturedGraph], which: int | None) -> int:
    """The graph to explore. Raises CaptureError where there is none, or several and nobody said which."""
    count, why = len(captured.graphs), "; ".join(b.text for b in [*captured.refused, *captured.breaks])
    if count == 0:
        raise CaptureError(f"nothing of {title} can be compiled: {why or 'the call computes nothing'}")
    if which is None and count > 1:
        sizes = ", ".join(str(len(g.imported.graph.nodes())) for g in captured.graphs)
        why = why or "sizes that only the data decide stand between them"
        several = f"{title} is {count} graphs, of {sizes} nodes ({why})"
        raise CaptureError(f"{several}; say which one to explore: graph=0 to graph={count - 1}")
    if which is not None and not 0 <= which < count:
        raise CaptureError(f"graph={which} of {title}; expected 0 to {count - 1}")
    return which or 0


def _of_onnx(source: object, inputs: Sequence[object], backward: bool | None) -> Subject:
    from daceopt.capture.onnx.file import load
    from daceopt.capture.onnx.importer import import_model

    title = os.fspath(source) if isinstance(source, str | os.PathLike) else "ONNX model"
    model: onnx.ModelProto = load(source)
    stored = {t.name for t in model.graph.initializer}
    fallbacks: dict[str, str] = {}
    graph = import_model(model, fallback=True, refused=lambda node, why: fallbacks.setdefault(node.op_type, why))
    subject = _of_graph(str(title), graph, inputs, backward)
    names = [v.name for v in model.graph.input if v.name not in stored]
    labels = {f"input:{k}": name for k, name in enumerate(names)}
    labels |= {f"output:{k}": f"output {v.name}" for k, v in enumerate(model.graph.output)}
    notes = [f"{name} runs in ONNX Runtime: {why}" for name, why in fallbacks.items()]
    return replace(subject, names=labels, notes=notes)


def _of_graph(title: str, graph: Graph, inputs: Sequence[object], backward: bool | None) -> Subject:
    gradients, tensors = _all_gradients(graph) if backward else None, _tensors(graph, inputs)
    subject = Subject(title, Program.of(graph, gradients), tensors)
    if subject.device.type != "cpu":
        DevicePlacement(target.on(subject.device.type).name).run(graph)
    return subject


def _all_gradients(graph: Graph) -> Gradients:
    """Of all outputs by all inputs that are floating-point numbers."""
    ends = (
        [k for k, n in enumerate(names) if types.is_float(graph.dtype(n))] for names in (graph.inputs, graph.outputs)
    )
    inputs, outputs = map(tuple, ends)
    if not inputs or not outputs:
        raise DaceoptError("backward=True needs inputs and outputs that are floating-point numbers; there are none")
    return Gradients(inputs, outputs)


def _tensors(graph: Graph, inputs: Sequence[object]) -> dict[int, torch.Tensor]:
    """The given arrays, or random ones. Raises TypeError where number, type or shape do not fit."""
    if not inputs:
        random = random_inputs(graph)
        return {k: _tensor(graph, n, random[n]) for k, n in enumerate(graph.inputs)}
    if len(inputs) != len(graph.inputs):
        raise TypeError(f"the model takes {len(graph.inputs)} inputs, {len(inputs)} were given")
    tensors = {}
    for k, (name, value) in enumerate(zip(graph.inputs, inputs, strict=True)):
        tensors[k] = _tensor(graph, name, value)
        if not _fits(graph.shape(name), tensors[k].shape):
            raise TypeError(f"input {k}: expected the shape {graph.shape(name)}, found {tuple(tensors[k].shape)}")
    return tensors


def _fits(shape: Sequence[Dim], extents: Sequence[int]) -> bool:
    return len(shape) == len(extents) and all(e == n for e, n in zip(shape, extents) if isinstance(e, int))


def _tensor(graph: Graph, name: str, value: object) -> torch.Tensor:
    dtype = types.to_numpy(graph.dtype(name))
    tensor = as_tensor(value, dtype, torch_dtype(dtype.name))
    if tensor is None:
        raise TypeError(f"input {name}: expected an array of {dtype.name}, found {type(value).__name__}")
    return tensor.to(torch_dtype(dtype.name)).contiguous()


def _array(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    return to_numpy(tensor, types.to_numpy(dtype))
