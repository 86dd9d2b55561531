"""A stable identity of a graph of Dynamo: equal for equal graphs in any process, different when a node, an argument,
a size, a kind of tensor or a constant differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from daceopt.capture.torch.custom_gradient import BACKWARDS, Backward
from daceopt.capture.torch.foreign import text_of_target, text_of_value
from daceopt.store.own_text import home


def fingerprint(module: GraphModule, parts: Iterable[object]) -> str:
    """SHA-256 over the graph (targets, arguments, kinds of results, subgraphs, constants) and ``parts`` (their
    ``repr``).

    Node names and memory addresses do not enter: nodes count by position.
    """
    digest = hashlib.sha256()
    for part in (torch.__version__, *parts):
        digest.update(repr(part).encode())
        digest.update(b"\0")
    _add_graph(digest, module)
    return digest.hexdigest()


def surroundings(devices: Iterable[str]) -> list[object]:
    """The switches of PyTorch that decide what operators compute, and are in no graph."""
    autocast = [
        (torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d)) if torch.is_autocast_enabled(d) else "")
        for d in devices
    ]
    return [autocast, torch.get_float32_matmul_precision(), torch.get_default_dtype()]


def describe(value: object) -> str:
    """The kind of an argument: element type, sizes, strides, layout and device of a tensor, or the size itself."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    strides = [str(s) for s in value.stride()] if value.layout is torch.strided else value.layout
    return f"{value.dtype}{[str(d) for d in value.shape]}{strides}{value.device}{value.requires_grad}"


def _add_graph(digest: Any, module: GraphModule) -> None:
    positions = {node: i for i, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        # a placeholder's target is its name, a get_attr's the name of a subgraph or tensor whose contents follow
        target = _target(node.target) if node.op in ("call_function", "call_method") else ""
        arguments = _text(node.args, positions) + _text(node.kwargs, positions)
        digest.update(f"{node.op} {target} {arguments} {_kinds(node.meta.get('example_value'))}\n".encode())
        if node.op == "call_function":
            digest.update(text_of_target(node.target).encode())
        if node.op in ("get_attr", "call_module"):
            _add_attribute(digest, module, str(node.target))
    for backward in module.meta.get(BACKWARDS, ()):
        _add_backward(digest, backward)


def _add_backward(digest: Any, backward: Backward) -> None:
    """What the markers of a functional graph name by a number alone."""
    digest.update(_text((backward.others, backward.operands, backward.saved), {}).encode())
    _add_graph(digest, backward.graph)


def _target(target: object) -> str:
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", getattr(target, "__name__", ""))
    # operators and what comes from C have a text without an address
    return f"{home(target) or ''}.{name}" if name else str(target)


def _kinds(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "(" + ",".join(map(_kinds, value)) + ")"
    return describe(value) if isinstance(value, (torch.Tensor, torch.SymInt)) else ""


def _add_attribute(digest: Any, module: GraphModule, target: str) -> None:
    owner, _, name = target.rpartition(".")
    value = getattr(module.get_submodule(owner), name)
    if isinstance(value, GraphModule):
        _add_graph(digest, value)
    elif isinstance(value, torch.Tensor):
        digest.update(describe(value).encode())
        digest.update(_bytes(value))
    else:
        digest.update(text_of_value(value).encode())


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _text(value: object, positions: dict[Node, int]) -> str:
    if isinstance(value, Node):
        return f"%{positions[value]}"
    if isinstance(value, (list, tuple)):
        return "(" + ",".join(_text(v, positions) for v in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_text(v, positions)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step), positions)}"
    if isinstance(value, float):
        return value.hex()
    return f"{type(value).__name__} {text_of_value(value)}"
