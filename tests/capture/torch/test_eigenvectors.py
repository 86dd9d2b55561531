"""Eigenvectors, whose derivative by PyTorch solves a system and checks that it could."""

from __future__ import annotations

import pytest
import torch

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted

X = torch.tensor([[2.0, -1.0, 0.5], [1.0, 3.0, 0.25], [0.0, 0.5, -1.0]])


def lengths(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors = torch.linalg.eig(x)
    return values.abs(), vectors.abs()


def test_eigenvectors_have_a_derivative() -> None:
    check(lengths, X, native=False)
    check(lengths, torch.stack([X, X.t()]), native=False)


def test_a_system_that_cannot_be_solved_is_an_error_also_where_something_is_written() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(x, y.add_(1))

    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(fn)
    assert torch.allclose(compiled(X, torch.ones(3)), fn(X, torch.ones(3)))
    with pytest.raises(RuntimeError, match="singular"):
        compiled(torch.zeros(3, 3), torch.ones(3))
