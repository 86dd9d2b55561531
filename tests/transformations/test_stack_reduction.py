"""Sums of what is stacked for them are sums element by element; what is read by others, or not one each, stays."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.ir.text.render import render
from daceopt.transformations.coarse.stack_reduction import StackReduction
from tests.numerics import assert_within_rounding
from tests.transformations.graphs import Net, check, near_misses


def stacked(op_type: str = "ReduceSum", terms: int = 3, axes: Any = (0,), axis: int = 0, **attributes: Any) -> Net:
    shape = [4, 5]
    shape.insert(axis % 3, 1)
    net = Net(**{f"x{k}": tuple(shape) for k in range(terms)})
    names = [getattr(net, f"x{k}") for k in range(terms)]
    whole = [n * (terms if a == axis % 3 else 1) for a, n in enumerate(shape)]
    net.stack = net.op("Concat", *names, shape=tuple(whole), axis=axis)  # type: ignore[attr-defined]
    gone = {a % 3 for a in axes}
    keeps = attributes.get("keepdims", 1)
    result = [1 if a in gone else n for a, n in enumerate(whole) if keeps or a not in gone]
    net.y = net.op(op_type, net.stack, net.const(list(axes), np.int64), shape=tuple(result), **attributes)  # type: ignore[attr-defined]
    return net


@pytest.mark.parametrize("terms", [2, 3, 20])
@pytest.mark.parametrize(("op_type", "after"), [("ReduceSum", "Sum"), ("ReduceMean", "Mean")])
def test_sums_and_means(op_type: str, after: str, terms: int) -> None:
    net = stacked(op_type, terms)
    check(StackReduction(), net.done(net.y), [after])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_axes_that_vanish(axis: int) -> None:
    net = stacked(axes=(axis,), axis=axis, keepdims=0)
    check(StackReduction(), net.done(net.y), ["Sum", "Squeeze"])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("keeps", [0, 1])
def test_what_was_given_an_axis_for_the_stack(axis: int, keeps: int) -> None:
    net = Net(a=(4, 5), b=(4, 5))
    shape = [4, 5]
    shape.insert(axis, 1)
    given = [net.a, net.b]  # type: ignore[attr-defined]
    rows = [net.op("Unsqueeze", x, net.const([axis], np.int64), shape=tuple(shape)) for x in given]
    stack = net.op("Concat", *rows, shape=tuple(2 if n == 1 else n for n in shape), axis=axis)
    result = tuple(shape) if keeps else (4, 5)
    y = net.op("ReduceSum", stack, net.const([axis], np.int64), shape=result, keepdims=keeps)
    check(StackReduction(), net.done(y), ["Unsqueeze", "Unsqueeze", "Sum"] if keeps else ["Sum"])


def test_what_is_written() -> None:
    net = stacked(terms=2, keepdims=0)
    graph = net.done(net.y)
    StackReduction().run(graph)
    assert (
        render(graph)
        == """graph test(x0_1: float32[1, 4, 5], x1_2: float32[1, 4, 5]) -> reducesum_5
  opset "" 21
  total_6: float32[1, 4, 5] = Sum(x0_1, x1_2)
  axes_7: int64[1] = [0]
  reducesum_5: float32[4, 5] as "ReduceSum" = Squeeze(total_6, axes_7)
"""
    )


def test_what_stays() -> None:
    for op_type in ("ReduceMax", "ReduceMin", "ReduceProd"):
        net = stacked(op_type)
        assert near_misses(StackReduction(), net.done(net.y)) == ""
    for axes in ((1,), (0, 1)):
        net = stacked(axes=axes)
        assert near_misses(StackReduction(), net.done(net.y)) == ""
    net = stacked()
    assert "read by others" in near_misses(StackReduction(), net.done(net.y, net.stack))
    net = stacked(terms=5)
    assert "5 terms; expected 2 to 4" in near_misses(StackReduction(most=4), net.done(net.y))


def test_parts_of_several_rows() -> None:
    net = Net(a=(1, 4), b=(2, 4))
    y = net.op("Concat", net.a, net.b, shape=(3, 4), axis=0)  # type: ignore[attr-defined]
    graph = net.done(net.op("ReduceSum", y, net.const([0], np.int64), shape=(1, 4)))
    assert "parts of 1, 2 along the axis" in near_misses(StackReduction(), graph)


@pytest.mark.parametrize("dtype", [dace.int32, dace.float16])
def test_types_that_accumulate_in_others(dtype: Any) -> None:
    net = Net()
    names = [net.graph.add_input("x", (1, 4), dtype) for _ in range(2)]
    y = net.op("Concat", *names, shape=(2, 4), axis=0)
    graph = net.done(net.op("ReduceSum", y, net.const([0], np.int64), shape=(1, 4)))
    assert "accumulates in another type" in near_misses(StackReduction(), graph)


class Skips(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        return torch.relu(getattr(torch.stack(xs), self.how)(0))


@pytest.mark.parametrize("how", ["sum", "mean", "amax"])
def test_modules_and_their_gradients(how: str) -> None:
    """Twenty terms, one of them many times the others: as exact as PyTorch; equal largest ones share alike."""
    torch.manual_seed(0)
    xs = [torch.randn(3, 33, requires_grad=True) for _ in range(20)]
    with torch.no_grad():
        xs[3].mul_(1e4)
        xs[5].copy_(xs[4])
        xs[6].copy_(xs[4])
    module = Skips(how)

    def both(model: nn.Module, *given: torch.Tensor) -> list[torch.Tensor]:
        y = model(*given)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), given)]

    exact = both(module, *(x.detach().double().requires_grad_() for x in xs))
    theirs = both(module, *xs)
    ours = both(optimized_module(Skips(how), fallback="raise"), *xs)
    for mine, wanted, eager in zip(ours, exact, theirs, strict=True):
        assert_within_rounding(mine.numpy(), wanted.numpy(), eager.numpy())
