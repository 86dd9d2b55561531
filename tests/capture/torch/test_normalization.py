"""Normalizations: results, gradients and running statistics, and the operators that they become."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt.modules.backend import Backend
from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted
from tests.numerics import assert_within_rounding

X = (torch.arange(360.0) * 217 % 361).reshape(4, 6, 5, 3) / 60 - 1
W, B = torch.linspace(0.5, 2, 6), torch.linspace(-1, 1, 6)
ROW, SHIFT = torch.linspace(0.5, 2, 3), torch.linspace(-1, 1, 3)

NORMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "layer": (lambda x, w, b: F.layer_norm(x, (3,), w, b), (X, ROW, SHIFT)),
    "layer_plain": (lambda x: F.layer_norm(x, (5, 3), eps=1e-3), (X,)),
    "layer_scaled": (lambda x, w: F.layer_norm(x, (3,), w), (X, ROW)),
    "group": (lambda x, w, b: F.group_norm(x, 3, w, b), (X, W, B)),
    "group_plain": (lambda x: F.group_norm(x, 2), (X,)),
    "instance": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (X, W, B)),
    "batch": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (X, W, B)),
    "batch_plain": (lambda x: F.batch_norm(x, None, None, training=True, eps=1e-3), (X,)),
    "rms": (lambda x, w: F.rms_norm(x, (3,), w), (X, ROW)),
    "rms_plain": (lambda x: F.rms_norm(x, (5, 3), eps=1e-3), (X,)),
}


def operators(backend: Backend) -> set[str]:
    graph = backend.graphs[0].pair.source.load("cpu").graph
    return {n.op_type for n in graph.operators()}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    fn, args = NORMS[name]
    check(fn, *(a.to(dtype) for a in args))


@pytest.mark.parametrize("name", NORMS)
def test_double(name: str) -> None:
    """Without gradients: nothing is wider than double, so their rounding has no measure."""
    fn, args = NORMS[name]
    check(fn, *(a.double() for a in args), grad=False)


@pytest.mark.parametrize("name", NORMS)
def test_open_sizes(name: str) -> None:
    fn, args = NORMS[name]
    check(fn, *args, dynamic=True)


def test_half_arrays_with_wide_parameters() -> None:
    for name in ("layer", "group"):
        fn, (x, *rest) = NORMS[name]
        check(fn, x.bfloat16(), *rest)


@pytest.mark.parametrize(
    ("name", "op_type"),
    [
        ("layer", "LayerNormalization"),
        ("layer_plain", "LayerNormalization"),
        ("group", "GroupNormalization"),
        ("batch", "BatchNormalization"),
        ("rms", "RMSNormalization"),
    ],
)
def test_operators_of_onnx(name: str, op_type: str) -> None:
    """What transformations recognise, with nothing beside it that recomputes its statistics."""
    fn, args = NORMS[name]
    assert operators(check(fn, *args)) == {op_type}


MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(6),
    "batch_moving": lambda: nn.BatchNorm2d(6, momentum=0.3, eps=1e-2),
    "batch_plain": lambda: nn.BatchNorm2d(6, affine=False),
    "batch_inference": lambda: nn.BatchNorm2d(6).eval(),
    "batch_half": lambda: nn.BatchNorm2d(6).bfloat16(),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("name", MODULES)
def test_running_statistics(name: str) -> None:
    """Two steps: results, gradients and buffers, in place, as eager PyTorch's."""
    ours = MODULES[name]()
    theirs, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    torch._dynamo.reset()
    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(ours)
    x = X.to(next(iter(ours.buffers())).dtype)
    for _ in range(2):
        found = [_step(m, f, x.to(d)) for m, f, d in ((ours, compiled, x.dtype), (theirs,) * 2 + (x.dtype,))]
        wide = _step(exact, exact, x.double())
        for a, b, c in zip(*found, wide, strict=True):
            assert a.dtype == b.dtype
            assert_within_rounding(_array(a), _array(c), _array(b))
    assert [int(b) for b in ours.buffers() if b.dtype == torch.int64] == [
        int(b) for b in theirs.buffers() if b.dtype == torch.int64
    ]


def _step(module: nn.Module, fn: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = fn(x)
    slope = torch.arange(y.numel()).reshape(y.shape).cos().to(y.dtype)
    grads = torch.autograd.grad(y, [x, *module.parameters()], slope)
    return [y, *grads, *(b.clone() for b in module.buffers() if b.is_floating_point())]


def _array(x: torch.Tensor) -> Any:
    from tests.capture.torch.checking import _numbers

    return _numbers(x)


@pytest.mark.share(2)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("axes", [(1, 0), (2, 1, 0), (0, 2, 1), (0, 2, 3, 1), (1, 0, 2, 3), (0, 2, 3, 4, 1)], ids=str)
def test_batch_normalization_gives_the_memory_format_of_its_operator(
    axes: tuple[int, ...], training: bool, dynamic: bool
) -> None:
    shape = [axes.index(k) for k in range(len(axes))]
    x = torch.linspace(-1, 1, 360).sin().reshape(*(3, 4, 2, 3)[: len(axes) - 1], -1).permute(shape)
    state = torch.linspace(0, 1, x.shape[1]), torch.linspace(0.5, 2, x.shape[1])

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, *(s.to(x.dtype) for s in state), training=training).relu()

    check(fn, x, dynamic=dynamic)


def test_the_gradient_of_one_image_may_lie_by_channels() -> None:
    """Eager PyTorch's batch normalization reads such a gradient as if it lay as the image does; where the gradient is
    made contiguous, it has the numbers that ours has at once."""

    def fn(x: torch.Tensor, other: torch.Tensor, hook: bool = False) -> torch.Tensor:
        y = F.batch_norm(x, None, None, W.to(x.dtype), B.to(x.dtype), training=True)
        if hook:
            y.register_hook(lambda gradient: gradient.contiguous())
        return torch.einsum("bhkn,bkvn->bhvn", y.reshape(1, 2, 3, 15), other)

    torch._dynamo.reset()
    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(fn)
    other = W.repeat(15).cos().reshape(1, 3, 2, 15)

    def gradient(run: Callable[..., torch.Tensor], dtype: torch.dtype, **options: bool) -> Any:
        x = X[:1].to(dtype).clone().requires_grad_()
        y = run(x, other.to(dtype), **options)
        return _array(torch.autograd.grad(y, x, torch.arange(y.numel()).reshape(y.shape).cos().to(dtype))[0])

    theirs = gradient(fn, torch.float32, hook=True)
    assert_within_rounding(gradient(compiled, torch.float32), gradient(fn, torch.float64, hook=True), theirs)
