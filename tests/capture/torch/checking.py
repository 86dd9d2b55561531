"""Compares a function through the PyTorch front end with eager PyTorch: values, kinds, gradients, against float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.utils._pytree as pytree

from daceopt.modules.backend import Backend
from daceopt.modules.breaks import Break
from daceopt.modules.options import Options
from daceopt.programs.stats import Stats
from tests.capture.torch.interpreted import compile_interpreted
from tests.numerics import assert_within_rounding

_WIDE = {torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64}
_WIDE[torch.complex64] = torch.complex128


def check(
    fn: Callable[..., Any],
    *args: Any,
    native: bool = True,
    grad: bool = True,
    dynamic: bool | None = False,
    pipeline: Callable[..., Any] | None = None,
) -> Backend:
    """``fn(*args)`` and its gradients by floating inputs and by parameters of a module are eager PyTorch's, within
    float64's idea of rounding.

    ``native``: no operator is left to ATen. ``pipeline`` stands in for ``pipeline.compile_graph``; None interprets.
    Returns the backend, whose graphs tell what was made.
    """
    backend = make_backend(pipeline or compile_interpreted)
    torch._dynamo.reset()
    compiled = torch._dynamo.optimize(backend, nopython=True, dynamic=dynamic)(fn)
    compare(fn, compiled, args, grad)
    assert not (native and hosted(backend)), f"left to ATen: {hosted(backend)}"
    return backend


def hosted(backend: Backend) -> dict[str, str]:
    """The operators that were left to ATen, with the reasons."""
    return {k: v for piece in backend.graphs for k, v in piece.pair.source.graphs.imported.hosted.items()}


def make_backend(pipeline: Callable[..., Any]) -> Backend:
    def refused(reason: Break, error: BaseException) -> None:
        raise error

    backend = Backend(Options(recipe="none"), Stats(), refused)
    backend.compile = pipeline
    return backend


def compare(fn: Callable[..., Any], compiled: Callable[..., Any], args: Sequence[Any], grad: bool = True) -> None:
    """Results and gradients of ``compiled`` beside those of ``fn``, and of ``fn`` in float64."""
    wide = copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, our_grads = _run(compiled, args, grad)
        theirs, their_grads = _run(fn, args, grad)
        exact, exact_grads = _run(wide, [_wide(a) for a in args], grad)
    assert len(ours) == len(theirs)
    for k, (a, b, c) in enumerate(zip(ours, theirs, exact, strict=True)):
        _same(f"result {k}", a, b, c)
    for k, (a, b, c) in enumerate(zip(our_grads, their_grads, exact_grads, strict=True)):
        _same(f"gradient {k}", a, b, c, strides=False)


def _run(fn: Callable[..., Any], args: Sequence[Any], grad: bool) -> tuple[list[Any], list[Any]]:
    leaves, spec = pytree.tree_flatten(list(args))
    fresh = [_leaf(x, grad) for x in leaves]
    results = pytree.tree_leaves(fn(*pytree.tree_unflatten(fresh, spec)))
    weights = fn.parameters() if isinstance(fn, torch.nn.Module) else ()
    wanted = [x for x in (*fresh, *weights) if isinstance(x, torch.Tensor) and x.requires_grad]
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not grad or not wanted or not outputs:
        return results, []
    cotangents = [_cotangent(r) for r in outputs]
    return results, list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))


def _leaf(x: Any, grad: bool) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    twin = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
    return twin.requires_grad_(grad and (x.is_floating_point() or x.is_complex()))


def _cotangent(result: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
    return torch.cos(steps * 1.7 + 0.3).to(torch.float32).to(result.dtype)


def _wide(x: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(_WIDE.get(t.dtype, t.dtype)), x)


def _same(what: str, ours: Any, theirs: Any, exact: Any, strides: bool = True) -> None:
    if not isinstance(theirs, torch.Tensor):
        assert type(ours) is type(theirs) and ours == theirs, f"{what}: {ours!r}, expected {theirs!r}"
        return
    assert isinstance(ours, torch.Tensor), f"{what}: {ours!r}, expected a tensor"
    kinds = [(t.dtype, tuple(t.shape), t.requires_grad) for t in (ours, theirs)]
    assert kinds[0] == kinds[1], f"{what}: {kinds[0]}, expected {kinds[1]}"
    if strides and theirs.numel():
        assert ours.stride() == theirs.stride(), f"{what}: strides {ours.stride()}, expected {theirs.stride()}"
    try:
        assert_within_rounding(_numbers(ours), _numbers(exact), _numbers(theirs))
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}\nours {ours}\neager {theirs}\nfloat64 {exact}") from None


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    found = tensor.detach().resolve_conj().resolve_neg()
    if found._is_zerotensor():
        found = torch.zeros(found.shape, dtype=found.dtype)
    if found.is_complex():
        found = torch.view_as_real(found)
    if found.dtype == torch.bfloat16:
        import ml_dtypes

        return found.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return found.numpy()
