"""A stable identity of a trace: equal for equal graphs in any process, different when a node, shape, mode or constant
differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node


def fingerprint(module: GraphModule, parts: Iterable[object], constants: Iterable[torch.Tensor]) -> str:
    """SHA-256 over the graph (targets, arguments, result types), ``parts`` (by their ``repr``) and the constants'
    bytes.

    Node names and memory addresses do not enter: nodes count by position.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode())
        digest.update(b"\0")
    _add_graph(digest, module)
    for tensor in constants:
        _add_tensor(digest, tensor)
    return digest.hexdigest()


def _add_graph(digest: Any, module: GraphModule) -> None:
    positions = {node: i for i, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        # A placeholder's target is its name, a get_attr's the name of a subgraph or tensor whose contents follow.
        target = str(node.target) if node.op == "call_function" else ""
        arguments = _text(node.args, positions) + _text(node.kwargs, positions)
        digest.update(f"{node.op} {target} {arguments} {_text(node.meta.get('val'), positions)}\n".encode())
        if node.op == "get_attr":
            _add_attribute(digest, module, str(node.target))


def _add_attribute(digest: Any, module: GraphModule, target: str) -> None:
    owner, _, name = target.rpartition(".")
    value = getattr(module.get_submodule(owner), name)
    if isinstance(value, GraphModule):
        _add_graph(digest, value)
    elif isinstance(value, torch.Tensor):
        _add_tensor(digest, value)
    else:
        digest.update(f"{type(value).__qualname__}".encode())


def _add_tensor(digest: Any, tensor: torch.Tensor) -> None:
    digest.update(_tensor_type(tensor).encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest.update(memoryview(flat.view(torch.uint8).numpy()))


def _tensor_type(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{[str(d) for d in tensor.shape]}"


def _text(value: Any, positions: dict[Node, int]) -> str:
    if isinstance(value, Node):
        return f"%{positions[value]}"
    if isinstance(value, torch.Tensor):
        return _tensor_type(value)
    if isinstance(value, list | tuple):
        return "(" + ",".join(_text(v, positions) for v in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_text(v, positions)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, float):
        return value.hex()
    return str(value)
