"""How many bytes eager PyTorch saves for the backward of a graph: autograd is asked, on tensors without memory where
these tell all."""

from __future__ import annotations

from typing import Any

import torch

from daceopt.capture.torch import guards
from daceopt.capture.torch.traced import Traced
from daceopt.errors import DaceoptError
from daceopt.torch_internals.fake_tensors import FakeTensorMode
from daceopt.torch_internals.pytree import tree_leaves

_UNTOLD = ("MkldnnRnnLayerBackward",)
"""Nodes of autograd for operators whose fake form leaves out what they save (torch 2.13: the workspace is empty)."""


def saved_bytes(traced: Traced) -> int:
    """Bytes of the storages that autograd saves in one call, each once, but those of the arguments, which are there in
    any case. Sizes that are open count as in the call that is compiled for. Raises DaceoptError where it cannot run.

    Where fake tensors do not tell all, the graph runs once, on zeros.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            saved, is_all = _saved_bytes(traced)
        if is_all:
            return saved
        with torch.random.fork_rng(devices=[]):  # dropout draws: the caller's numbers are not shifted
            return _saved_bytes(traced)[0]
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DaceoptError(
            f"what eager PyTorch saves is not known ({reason}); expected a memory budget in bytes"
        ) from error


def _saved_bytes(traced: Traced) -> tuple[int, bool]:
    """The bytes, and whether all that is saved was seen."""
    storages: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other one gets its address
        return tensor

    with torch.enable_grad():
        arguments = [_argument(x, g) for x, g in zip(traced.inputs, traced.requires_grad, strict=True)]
        own = {x.untyped_storage()._cdata for x in arguments if isinstance(x, torch.Tensor)}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            results = traced.graph.forward(*arguments)
    saved = sum(int(s.nbytes()) for cdata, s in storages.items() if cdata not in own)
    return saved, not any(node.name().startswith(_UNTOLD) for node in _nodes(results))


def _nodes(results: object) -> set[Any]:
    """All that autograd has noted on the way to ``results``."""
    waiting = [x.grad_fn for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.grad_fn is not None]
    nodes: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node not in nodes:
            nodes.add(node)
            waiting += [n for n, _ in node.next_functions if n is not None]
    return nodes


def _argument(value: object, requires_grad: bool) -> object:
    """An argument of its own, of plain sizes."""
    if isinstance(value, torch.Tensor):
        size, stride = [_plain(n) for n in value.shape], [_plain(n) for n in value.stride()]
        tensor = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).zero_()
        return tensor.requires_grad_().view_as(tensor) if requires_grad else tensor
    return _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, torch.SymInt):
        return guards.example(value)
    return value.node.hint if isinstance(value, torch.SymFloat | torch.SymBool) else value
