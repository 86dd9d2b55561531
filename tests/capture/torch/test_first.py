"""The way through on small functions: views as results, custom functions, host calls, mutation, open sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from tests.capture.torch.checking import check


def test_a_result_in_another_order_of_axes() -> None:
    check(lambda x, w, b: (torch.relu(linear(x, w, b)) * 2.5).t(), torch.randn(4, 6), torch.randn(5, 6), torch.randn(5))


def test_a_custom_function_brings_its_backward() -> None:
    class StraightThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: int) -> torch.Tensor:
            ctx.save_for_backward(x)
            return torch.relu(x) * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
            (x,) = ctx.saved_tensors
            return g * 3 + x, None

    check(lambda x: StraightThrough.apply(x, 3) + x, torch.randn(4, 6))


def test_an_operator_without_a_native_form_runs_in_aten_in_both_directions() -> None:
    backend = check(lambda x: torch.special.i1(x) + x, torch.randn(4, 6), native=False)
    assert "special_i1.default" in backend.graphs[0].pair.source.graphs.imported.hosted


def test_extrema_of_half_types() -> None:
    check(lambda x: torch.max(x, 1)[0] * 2, torch.randn(4, 6).bfloat16())


def test_writes_into_parts_of_an_intermediate() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        y.mul_(x)
        y[:, 1].add_(x[:, 0])
        return y

    check(fn, torch.randn(4, 6))


def test_open_sizes() -> None:
    check(lambda x: torch.max(x * 2, 1)[0].view(2, -1), torch.randn(4, 6), dynamic=True)


def test_gradients_through_vmap() -> None:
    """Inside of vmap no tensor says that it requires a gradient."""

    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda a, b: a * b.exp() + a)(x, y)

    check(scaled, torch.randn(3, 4), torch.randn(3, 4))


def test_vmap_where_gradients_are_off() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = torch.vmap(lambda a: a.exp() * 2)(x)
        return x * factor

    check(scaled, torch.randn(3, 4))
