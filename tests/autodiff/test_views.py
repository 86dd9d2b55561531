"""Gradients of views: transposed, reshaped, sliced, reversed and broadcast arrays."""

from __future__ import annotations

from typing import Any

import pytest

from daceopt.autodiff.views import view_index
from daceopt.ir.nodes.builder import Builder
from tests.autodiff.checking import check

VIEWS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "transpose": (lambda b, x: b.transpose(x, [2, 0, 1]), lambda x: x.permute(2, 0, 1), (2, 3, 4)),
    "transpose_with_one": (lambda b, x: b.transpose(x, [1, 0, 2]), lambda x: x.transpose(0, 1), (1, 3, 4)),
    "reshape": (lambda b, x: b.reshape(x, [4, 6]), lambda x: x.reshape(4, 6), (2, 3, 4)),
    "heads": (
        lambda b, x: b.transpose(b.reshape(x, [2, 3, 2, 2]), [0, 2, 1, 3]),
        lambda x: x.reshape(2, 3, 2, 2).transpose(1, 2),
        (2, 3, 4),
    ),
    "reshape_with_copy": (lambda b, x: b.reshape(b.transpose(x, [1, 0]), [2, 6]), lambda x: x.T.reshape(2, 6), (3, 4)),
    "unsqueeze": (lambda b, x: b.unsqueeze(x, [0, 2]), lambda x: x[None, :, None], (3, 4)),
    "squeeze": (lambda b, x: b.squeeze(x), lambda x: x.squeeze(), (1, 3, 1, 4)),
    "slice": (lambda b, x: b.slice(x, [1, 0], [3, 2], axes=[0, 1]), lambda x: x[1:3, :2], (4, 5)),
    "strided": (lambda b, x: b.slice(x, [1, 0], [7, 5], [2, 3], axes=[0, 1]), lambda x: x[1:7:2, 0:5:3], (8, 6)),
    "strided_to_the_end": (lambda b, x: b.slice(x, [0], [8], [2], axes=[0]), lambda x: x[::2], (8, 6)),
    "one_row": (lambda b, x: b.slice(x, [2], [3], axes=[0]), lambda x: x[2:3], (4, 5)),
    "one_column": (lambda b, x: b.slice(x, [4], [5], axes=[1]), lambda x: x[:, 4:5], (4, 5)),
    "reverse": (lambda b, x: b.slice(x, [3], [-1], [-1], axes=[1]), lambda x: x.flip(1), (3, 4)),
    "expand": (lambda b, x: b.expand(x, [5, 3, 4]), lambda x: x.expand(5, 3, 4), (3, 1)),
    "expand_scalar": (lambda b, x: b.expand(x, [2, 3]), lambda x: x.expand(2, 3), ()),
    "expand_then_transpose": (
        lambda b, x: b.transpose(b.expand(x, [5, 3, 4]), [2, 1, 0]),
        lambda x: x.expand(5, 3, 4).permute(2, 1, 0),
        (3, 1),
    ),
    "slice_then_transpose": (
        lambda b, x: b.transpose(b.slice(x, [1], [3], axes=[1]), [1, 0]),
        lambda x: x[:, 1:3].T,
        (3, 4),
    ),
    "flatten_a_slice": (
        lambda b, x: b.reshape(b.slice(x, [1], [3], axes=[0]), [8]),
        lambda x: x[1:3].reshape(8),
        (5, 4),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(name: str) -> None:
    view, reference, shape = VIEWS[name]

    def build(b: Builder, x: str) -> str:
        seen = view(b, x)
        return str(b.elementwise(lambda u: u * u, seen))

    check(build, lambda x: reference(x) ** 2, shape)


@pytest.mark.parametrize("name", VIEWS)
def test_view_as_output(name: str) -> None:
    view, reference, shape = VIEWS[name]
    check(view, reference, shape)


def test_three_slices_of_one_array() -> None:
    def build(b: Builder, x: str) -> str:
        q, k, v = (b.slice(x, [4 * n], [4 * n + 4], axes=[1]) for n in range(3))
        return str(b.elementwise(lambda s, t, u: s * t + u, q, k, v))

    check(build, lambda x: x[:, :4] * x[:, 4:8] + x[:, 8:], (3, 12))


def test_view_and_its_source_are_both_used() -> None:
    def build(b: Builder, x: str) -> str:
        return str(b.elementwise(lambda u, v: u * v, x, b.transpose(x, [1, 0])))

    check(build, lambda x: x * x.T, (3, 3))


def test_a_transposed_gradient_is_a_view() -> None:
    derivative = check(lambda b, x: b.elementwise(_square, b.transpose(x, [1, 0])), lambda x: x.T**2, (3, 4))[0]
    assert len(derivative.backward.kernels()) == 2  # the square's own, and the copy that an output needs


def _square(x: Any) -> Any:
    return x * x


def test_view_index_refuses_a_dimension_that_crosses_rows() -> None:
    assert view_index((6,), (1,), 0, (2, 3), (3, 1)) is None
    assert view_index((2,), (1,), 1, (2, 3), (3, 1)) is not None
