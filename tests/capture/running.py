"""Runs the ONNX model of a trace in ONNX Runtime and puts its results back into the structure of the call."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.utils._pytree as pytree
from onnx.reference import ReferenceEvaluator
from torch import nn

from daceopt.capture.trace import Trace, trace
from tests.numerics import assert_within_rounding


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime, or the reference where batch norm trains: ONNX Runtime's kernel overwrites the old statistics
    that others read.
    """
    if any(node.op_type == "BatchNormalization" and _attribute(node, "training_mode") for node in model.graph.node):
        return ReferenceEvaluator(model).run(None, feeds)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((a.i for a in node.attribute if a.name == name), 0)


def call(captured: Trace, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None):
    """The result of the call by ONNX Runtime, and the new values of the buffers."""
    leaves = pytree.tree_leaves((args, kwargs or {}))
    tensors = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    values = [_value(spec, leaves, tensors) for spec in captured.inputs]
    model = captured.to_onnx()
    feeds = {v.name: t.detach().numpy() for v, t in zip(model.graph.input, values, strict=True)}
    found = iter(run(model, feeds))
    results = [next(found) if out.kind in ("user", "buffer_mutation") else None for out in captured.outputs]
    flat: dict[int, Any] = {}
    buffers = {}
    for out, result in zip(captured.outputs, results, strict=True):
        if out.kind == "buffer_mutation":
            buffers[out.target] = torch.from_numpy(result)
        else:
            flat[out.target] = _fill(out, result, results, values)
    return pytree.tree_unflatten([flat[i] for i in range(len(flat))], captured.out_tree), buffers


def _value(spec, leaves, tensors):
    if spec.kind == "user":
        return leaves[spec.target]
    return spec.value if spec.kind == "constant" else tensors[spec.target]


def _fill(out, result, results, values):
    if out.kind == "constant":
        return out.value
    if out.kind == "input":
        return values[out.source]
    return torch.from_numpy(results[out.source] if out.kind == "alias" else result)


def check(
    module: nn.Module, *args: Any, dynamic: Any = None, other: tuple[Any, ...] | None = None, **kwargs: Any
) -> Trace:
    """Trace with ``args``, run with ``other`` (default: the same), compare results and buffers with float64 eager."""
    captured = trace(module, args, kwargs, dynamic=dynamic)
    inputs = other or args
    found, buffers = call(captured, module, inputs, kwargs)
    peer, wide = copy.deepcopy(module), copy.deepcopy(module).double()
    theirs = peer(*inputs, **kwargs)
    reference = wide(
        *pytree.tree_map_only(torch.Tensor, _widen, inputs), **pytree.tree_map_only(torch.Tensor, _widen, kwargs)
    )
    assert pytree.tree_structure(found) == pytree.tree_structure(theirs)
    for a, r, t in zip(*map(pytree.tree_leaves, (found, reference, theirs)), strict=True):
        if not isinstance(t, torch.Tensor):
            assert a == t
            continue
        assert a.dtype == t.dtype
        assert_within_rounding(a, r, t)
    for name, value in buffers.items():
        assert_within_rounding(value, wide.get_buffer(name), peer.get_buffer(name))
    return captured


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
