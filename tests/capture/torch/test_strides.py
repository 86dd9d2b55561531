"""Results have the strides that eager PyTorch gives them, and share memory with what eager PyTorch's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted

X = torch.linspace(-2, 3, 60).reshape(3, 4, 5)


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True, **options)(fn)


@pytest.mark.share(2)
@pytest.mark.parametrize("strides", [(7, 8), (10, 1), (1, 4), (0, 1), (2, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_with_gaps_or_overlaps(strides: tuple[int, ...], dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        empty = x.new_empty_strided((2, 3), strides)
        return [empty, empty[1:], empty.t()]

    ours, theirs = compiled(fn, dynamic=dynamic)(X), fn(X)
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]
    assert all(t.untyped_storage().data_ptr() == ours[0].untyped_storage().data_ptr() for t in ours)


def test_memory_with_gaps_by_sizes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        return x.new_empty_strided((rows, columns), (columns * 2, 1)).copy_(x * 2)

    assert compiled(fn, dynamic=True)(X[0]).stride() == fn(X[0]).stride() == (10, 1)


def test_elements_stand_where_their_strides_say() -> None:
    check(lambda x: x.new_empty_strided((4, 5), (11, 2)).copy_(x), X[0], native=False)


def test_parts_that_are_views_of_which_autograd_knows_nothing() -> None:
    check(lambda x: torch.unsafe_chunk(x, 2, 1), X)
    check(lambda x: torch.unsafe_split(x * 2, 3, -1), X)
    check(lambda x: torch.unsafe_split_with_sizes(x, [1, 3], 1), X)
    parts = compiled(lambda x: torch.unsafe_chunk(x, 2, 1))(X)
    assert parts[1].data_ptr() == X[:, 2:].data_ptr()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_unpooling_keeps_the_layout(layout: torch.memory_format) -> None:
    x = X.reshape(1, 3, 4, 5)[..., :4].contiguous(memory_format=layout)
    check(lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), 2), x, native=False)


_IMAGE = torch.channels_last


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn, x",
    [
        (lambda x: x.relu(), torch.ones(2, 1, 4, 3).to(memory_format=_IMAGE)),
        (lambda x: functional.gelu(x) + 1, torch.ones(2, 1, 4, 3).to(memory_format=_IMAGE)),
        (lambda x: x**2, torch.ones(2, 1, 4, 3).to(memory_format=_IMAGE)),
        (lambda x: x + x, torch.ones(1, 3, 1, 1).to(memory_format=_IMAGE)),
        (functional.hardswish, torch.ones(2, 1, 4, 3).to(memory_format=_IMAGE)),
        (lambda x: functional.mse_loss(x, x, reduction="none"), torch.ones(2, 1, 4, 3).to(memory_format=_IMAGE)),
        (lambda x: functional.layer_norm(x, (5,)), torch.ones(2, 5, 1).mT),
        (lambda x: functional.one_hot(x, 2), torch.ones(2, 3, 4, 1, dtype=torch.int64).to(memory_format=_IMAGE)),
        (lambda x: x * 2, torch.ones(2, 3, 4, 1).to(memory_format=_IMAGE)),
        (lambda x: x * 2, torch.ones(1, 3, 4, 5).to(memory_format=_IMAGE)),
        (lambda x: x.sum(1, keepdim=True), torch.ones(2, 3, 4, 5).to(memory_format=_IMAGE)),
        (lambda x: x.permute(2, 0, 1) * 2, torch.ones(4, 1, 3)),
        (lambda x: x.t() * 2, torch.ones(3, 4, dtype=torch.complex64)),
    ],
)
def test_strides_along_axes_of_one_element(fn: Callable[..., Any], x: torch.Tensor, dynamic: bool) -> None:
    ours, theirs = compiled(fn, dynamic=dynamic)(x), fn(x)
    assert ours.stride() == theirs.stride() and not ours._is_view()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "fn, x",
    [
        (lambda x: x * 2, torch.ones(2, 1, 4, 3).to(memory_format=_IMAGE)),
        (functional.hardtanh, torch.ones(2, 1, 4, 3).to(memory_format=_IMAGE)),
        (lambda x: x.clone(), torch.ones(20).as_strided((1, 4), (7, 1))),
        (lambda x: x.clone(), torch.ones(20).as_strided((4, 1), (1, 0))),
    ],
)
def test_strides_of_one_element_that_are_those_of_the_operand(fn: Callable[..., Any], x: torch.Tensor) -> None:
    assert compiled(fn)(x).stride() == fn(x).stride() == x.stride()


def test_strides_of_no_elements() -> None:
    x = torch.ones(0, 3, 4, 4).to(memory_format=_IMAGE)
    assert compiled(lambda x: x.clone())(x).stride() == (x.clone()).stride()


@pytest.mark.share(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.masked_fill_(x > 0, 0.3),
        lambda x: x.t().masked_fill_(x > 0, 0.3).t(),
        lambda x: x.copy_(x.t().exp()),
        lambda x: x[1:].copy_(x.t()[1:].clone()),
        lambda x: x.index_add_(0, torch.tensor([1, 2]), x[:2].clone()),
        lambda x: x.tril_().t_().cumsum_(0),
    ],
)
@pytest.mark.parametrize("x", [X[0], X[0].t()], ids=["rows", "columns"])
def test_what_is_changed_in_place_stands_as_before(x: torch.Tensor, change: Callable[..., Any], dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        base = x * 2
        return change(base), base, base + 1

    check(fn, x[:4, :4], dynamic=dynamic)


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.diagonal(0, 0, 1).mul_(0.3),
        lambda v: v[:, ::2].exp_(),
        lambda v: v[1:, 1:].copy_(v[1:, 1:].t().clone()),
        lambda v: v[::2].masked_fill_(v[::2] > 0, 0.3),
        lambda v: v.unfold(0, 1, 2).mul_(2),
    ],
)
@pytest.mark.parametrize("x", [X[0], X[0].t()], ids=["rows", "columns"])
def test_what_is_changed_through_a_view_stands_as_before(
    x: torch.Tensor, change: Callable[..., Any], dynamic: bool
) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        base = x * 2
        return change(base), base, base + 1, base.unfold(1, 1, 2)

    check(fn, x[:4, :4], dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("axis, size, step", [(0, 2, 2), (1, 2, 2), (-1, 2, 2), (0, 3, 4)])
def test_writes_into_windows_leave_the_rest(axis: int, size: int, step: int, dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        base = x * 2
        windows = base.unfold(axis, size, step)
        windows.mul_(x.unfold(axis, size, step))
        windows[:1].add_(3)
        return base, windows, windows + 1

    check(fn, X[0], dynamic=dynamic)


def test_writes_into_windows_of_an_argument() -> None:
    ours, theirs = X[0].clone(), X[0].clone()
    compiled(lambda x: x.unfold(1, 2, 2).sigmoid_())(ours)
    theirs.unfold(1, 2, 2).sigmoid_()
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size, step", [(3, 2), (1, 3)])
def test_writes_into_windows_that_overlap_or_end_apart_are_refused(size: int, step: int) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="windows"):
        check(lambda x: (x * 2).unfold(1, size, step)[:, 1:].exp_(), X[0])


def test_a_start_that_is_an_element_of_a_tensor_is_refused() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="only the data decides"):
        check(lambda x, k: x.narrow(1, k, 2), X, torch.tensor(1))


def test_comparisons_with_a_parameter_on_the_right() -> None:
    parameter = torch.nn.Parameter(torch.randn(5, 4))

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x > parameter, x <= parameter, parameter < x, torch.gt(x, parameter), x > x.t().contiguous().t()

    x = torch.randn(4, 5).t()
    for ours, theirs in zip(compiled(fn)(x), fn(x), strict=True):
        assert ours.stride() == theirs.stride() and torch.equal(ours, theirs)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_log_sigmoid_is_contiguous(layout: torch.memory_format) -> None:
    """PyTorch's shape rule keeps the strides, its operator does not."""
    x = X.reshape(1, 3, 4, 5)[..., :4].contiguous(memory_format=layout)
    check(torch.nn.functional.logsigmoid, x)
    check(lambda x: torch.nn.functional.logsigmoid(x.transpose(1, 2)).reshape(-1), x)
