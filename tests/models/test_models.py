"""Whole models run natively: compiled from PyTorch, and from the ONNX file that PyTorch exports of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import daceopt
from tests.models.zoo import ARCHITECTURES, Example
from tests.numerics import assert_within_rounding

ARCHITECTURE = pytest.mark.parametrize("name", ARCHITECTURES)


def example(name: str) -> Example:
    torch.manual_seed(0)
    found = ARCHITECTURES[name]()
    found.module.eval()
    return found


def widened(value: Any) -> Any:
    """Real tensors in float64."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, value)


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a model's result, in its own order."""
    result = result.to_tuple() if hasattr(result, "to_tuple") else result
    return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def compare(ours: Any, found: Example) -> None:
    """The same results as float64, as far as PyTorch's own float32 reaches."""
    with torch.no_grad():
        peer = tensors(found.module(**found.inputs))
        exact = tensors(copy.deepcopy(found.module).double()(**widened(found.inputs)))
    assert len(ours) == len(exact)
    for a, r, t in zip(ours, exact, peer, strict=True):
        assert a.dtype == t.dtype
        assert_within_rounding(a, r, t)


@ARCHITECTURE
def test_module(name):
    found = example(name)
    optimized = daceopt.optimized_module(copy.deepcopy(found.module), fallback="raise")
    with torch.no_grad():
        compare(tensors(optimized(**found.inputs)), found)


@ARCHITECTURE
def test_onnx_file(name, tmp_path: Path):
    found = example(name)
    path = tmp_path / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(found.module, (), path, kwargs=found.inputs, dynamo=True, verbose=False)
    optimized = daceopt.from_onnx(path, fallback=False)
    given = pytree.tree_leaves(found.inputs)
    results = optimized(*given)
    compare(results if isinstance(results, list) else [results], found)
