"""What the compiler has to know of a graph of TorchDynamo: its arguments, its results, and what identifies it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import assertions, guards, refusals
from daceopt.capture.torch.connection import differentiable
from daceopt.capture.torch.fingerprint import describe as kind
from daceopt.capture.torch.fingerprint import fingerprint, surroundings
from daceopt.capture.torch.gradient_scopes import join_undropped
from daceopt.capture.torch.lines import line_of, note_line
from daceopt.capture.torch.shape_changes import as_views
from daceopt.capture.torch.traced import Traced
from daceopt.errors import Unsupported
from daceopt.runtime.places import DEVICES, common_device
from daceopt.torch_internals.fake_tensors import FakeTensorMode
from daceopt.torch_internals.modes import is_traceable_wrapper_subclass


def describe(graph: fx.GraphModule, inputs: Sequence[object]) -> Traced:
    """What the compiler has to know of a graph of Dynamo. Raises Unsupported for inputs that it cannot take."""
    assertions.as_statements(graph)
    graph = as_views(graph)
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    values = [n.meta.get("example_value", x) for n, x in zip(placeholders, inputs, strict=True)]
    for node, value in zip(placeholders, values):
        _check_input(_name(node), value)
    common_device({n.name: v for n, v in zip(placeholders, values) if isinstance(v, torch.Tensor)})
    _check_storage(graph)
    _check_transforms(graph)
    refusals.check(graph, values)
    join_undropped(graph.graph)
    results = graph.graph.output_node().args[0]
    requires_grad = tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    inputs_with_grad = {n for n, flag in zip(placeholders, requires_grad) if flag}
    return Traced(
        graph,
        tuple(_fresh(v, n) if isinstance(v, torch.Tensor) else v for v, n in zip(values, placeholders)),
        tuple(_name(n) for n in placeholders),
        requires_grad,
        differentiable(graph.graph, results, inputs_with_grad),
        differentiable(graph.graph, placeholders, inputs_with_grad),
        tuple(_is_state(n) for n in placeholders),
    )


def _check_storage(graph: fx.GraphModule) -> None:
    """What reads an argument's storage by absolute positions depends on where the argument starts in it."""
    for node in graph.graph.nodes:
        if node.target not in ("as_strided", torch.as_strided) or not node.args or node.args[0].op != "placeholder":
            continue
        offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
        if offset is not None:
            raise Unsupported(f"as_strided of {node.args[0].name}, an argument, by an offset; expected one of a result")


def _check_transforms(graph: fx.GraphModule) -> None:
    """Gradients inside of a gradient stop elsewhere than those of the graph."""
    transforms = {"_grad_increment_nesting", "_jvp_increment_nesting", "_enter_dual_level"}
    nodes = list(graph.graph.nodes)
    for k, node in enumerate(nodes):
        if getattr(node.target, "__name__", "") in transforms:
            error = Unsupported(
                "a transform of torch.func that differentiates, inside of forward; expected one around it"
            )
            note_line(error, next(filter(None, map(line_of, nodes[k:])), ""))
            raise error


def _check_input(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        if not isinstance(value, (int, torch.SymInt)):
            raise Unsupported(f"{name} is a {type(value).__name__}; expected tensors and sizes")
        return
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise Unsupported(f"{name} has layout {value.layout}; expected a dense tensor")
    if is_traceable_wrapper_subclass(value):
        raise Unsupported(f"{name} is a {type(value).__name__}; expected a plain torch.Tensor")


def _fresh(fake: Any, placeholder: fx.Node) -> torch.Tensor:
    """A fake tensor of the same kind, without the history that tracing left; one that stands for a number itself."""
    if fake.item_memo is not None:
        return fake
    # Dynamo takes Python's random numbers for float32, and then passes them in full
    drawn = type(getattr(placeholder.meta.get("grapharg"), "source", None)).__name__ == "RandomValueSource"
    dtype = torch.float64 if drawn and fake.dtype is torch.float32 else fake.dtype
    with fake.fake_mode:
        return torch.empty_strided(fake.shape, fake.stride(), dtype=dtype, device=fake.device)


def _name(placeholder: fx.Node) -> str:
    """How the model calls an argument: ``encoder.0.weight`` for a parameter, else the argument's name."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None)
    if source is None:
        return placeholder.name
    text = str(getattr(source, "name", ""))
    if _is_state(placeholder):  # of whatever the method calls its module
        text = re.sub(r"^L\['\w+'\]", "", text)
    text = re.sub(r"\._(modules|parameters|buffers)", "", text)
    return text.replace("['", ".").replace("']", "").removeprefix("L").strip(".") or placeholder.name


def _is_state(placeholder: fx.Node) -> bool:
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    text = str(getattr(source, "name", ""))
    return "._parameters[" in text or "._buffers[" in text


def identity(traced: Traced) -> str:
    """Of a graph with everything that decides what is compiled."""
    inputs = [kind(x) for x in traced.inputs]
    inputs += guards.hints(traced.inputs, list(traced.graph.graph.find_nodes(op="placeholder")))
    flags = [traced.requires_grad, traced.results, traced.changed, traced.draws]
    return fingerprint(traced.graph, [inputs, *flags, surroundings(DEVICES)])


def is_symbolic(traced: Traced) -> bool:
    """Whether a size or a number of the graph is known in a call only."""
    sizes = [s for x in traced.inputs for s in (x.shape if isinstance(x, torch.Tensor) else (x,))]
    return any(isinstance(s, torch.SymInt) for s in sizes)


def specialise(traced: Traced, arguments: Sequence[object]) -> Traced:
    """The same graph for the sizes of these arguments."""
    with FakeTensorMode():
        fakes = [_like(x) if isinstance(x, torch.Tensor) else x for x in arguments]
    return replace(traced, inputs=tuple(fakes))


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
