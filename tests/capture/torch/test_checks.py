"""Numbers for which ATen raises an error raise one in compiled code, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt import optimized_module
from tests.capture.torch import checking
from tests.capture.torch.interpreted import compile_interpreted

ROWS = torch.linspace(-1, 1, 12).reshape(3, 4)
NUMBERS = torch.tensor([7, -7, 0, 5])


def _weights(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


# name: (function, arguments that are good, arguments that are not)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "floor_divide": (lambda a, b: a // b, (NUMBERS, torch.tensor(3)), (NUMBERS, torch.tensor(0))),
    "div_trunc": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (NUMBERS, NUMBERS + 1), (NUMBERS, NUMBERS)),
    "remainder": (torch.remainder, (NUMBERS, NUMBERS + 1), (NUMBERS, NUMBERS)),
    "remainder_scalar": (lambda a, n: a % n, (NUMBERS, -3), (NUMBERS, 0)),
    "fmod": (torch.fmod, (NUMBERS.int(), NUMBERS + 1), (NUMBERS.int(), NUMBERS)),
    "bernoulli": (torch.bernoulli, (_weights(0, 1, 1),), (_weights(0.5, 1.5),)),
    "bernoulli_nan": (torch.bernoulli, (_weights(0, 1, 1),), (_weights(float("nan")),)),
    "bernoulli_number": (lambda x, p: x.clone().bernoulli_(p), (ROWS, 1.0), (ROWS, -0.5)),
    "multinomial_sum": (lambda w: torch.multinomial(w, 1), (_weights(0, 1, 0),), (_weights(0, 0, 0),)),
    "multinomial_negative": (lambda w: torch.multinomial(w, 1), (_weights(0, 1, 0),), (_weights(1, -1, 1),)),
    "multinomial_nan": (
        lambda w: torch.multinomial(w, 2, replacement=True),
        (_weights(0, 1, 0),),
        (_weights(0.5, float("nan")),),
    ),
    "normal": (lambda m, s: torch.normal(m, s), (ROWS, ROWS * 0), (ROWS, ROWS)),
    "exponential": (lambda x, rate: x.clone().exponential_(rate) * 0, (ROWS, 2.0), (ROWS, -2.0)),
    "cross_entropy_input": (F.binary_cross_entropy, (ROWS**2, ROWS**2), (ROWS, ROWS**2)),
    "cross_entropy_target": (F.binary_cross_entropy, (ROWS**2, ROWS**2), (ROWS**2, ROWS)),
    "embedding": (F.embedding, (torch.tensor([0, 2]), ROWS), (torch.tensor([0, 3]), ROWS)),
    "embedding_negative": (F.embedding, (torch.tensor([0, 2]), ROWS), (torch.tensor([0, -1]), ROWS)),
    "index": (lambda x, k: x[k], (ROWS, torch.tensor([0, -3])), (ROWS, torch.tensor([0, -4]))),
    "gather": (lambda x, k: x.gather(1, k), (ROWS, torch.tensor([[3]])), (ROWS, torch.tensor([[-1]]))),
    "scatter": (lambda x, k: x.scatter(1, k, 1.0), (ROWS, torch.tensor([[3]])), (ROWS, torch.tensor([[4]]))),
    "nll_loss": (F.nll_loss, (ROWS, torch.tensor([0, -100, 3])), (ROWS, torch.tensor([0, -1, 3]))),
    "one_hot": (lambda k: F.one_hot(k, 4), (torch.tensor([[0, 3], [1, 1]]),), (torch.tensor([0, 4]),)),
    "one_hot_negative": (lambda k: F.one_hot(k, 4), (torch.tensor(2),), (torch.tensor([0, -1]),)),
    "max_unpool3d": (
        lambda x, k: F.max_unpool3d(x, k, 2),
        (ROWS.reshape(1, 1, 1, 3, 4), torch.arange(12).reshape(1, 1, 1, 3, 4)),
        (ROWS.reshape(1, 1, 1, 3, 4), torch.arange(12).reshape(1, 1, 1, 3, 4) - 1),
    ),
    "max_unpool": (
        lambda x, k: F.max_unpool2d(x, k, 2),
        (ROWS.reshape(1, 1, 3, 4), torch.arange(12).reshape(1, 1, 3, 4) * 3),
        (ROWS.reshape(1, 1, 3, 4), torch.arange(12).reshape(1, 1, 3, 4) * 9),
    ),
    "index_add": (
        lambda x, k: x.index_add(0, k, 2 * x, alpha=0.5),
        (ROWS, torch.tensor([0, 2, 2])),
        (ROWS, torch.tensor([0, -1, 2])),
    ),
    "index_copy": (
        lambda x, k: x.index_copy(1, k, x.t()[:3].t() * 2),
        (ROWS, torch.tensor([3, 0, 1])),
        (ROWS, torch.tensor([0, -1, 2])),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_errors_of_aten_are_errors(name: str) -> None:
    fn, good, bad = CASES[name]
    checking.check(fn, *good)
    with pytest.raises((RuntimeError, IndexError)):
        fn(*bad)
    torch._dynamo.reset()
    backend = checking.make_backend(compile_interpreted)
    compiled = torch._dynamo.optimize(backend, nopython=True)(fn)
    with pytest.raises((RuntimeError, IndexError)):
        compiled(*bad)


class Quotient(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a // b + 1


def test_compiled_code_reports_the_check_and_goes_on_afterwards() -> None:
    module = optimized_module(Quotient(), fallback="raise")
    divisor = torch.arange(1, 5001)
    assert torch.equal(module(divisor * 3, divisor), torch.full((5000,), 4))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        module(divisor, divisor - 4000)
    assert torch.equal(module(divisor, divisor), torch.full((5000,), 2))


def test_a_check_in_differentiated_code_is_no_obstacle() -> None:
    """The error is PyTorch's own: a call that compiled code refuses runs in eager mode once more."""
    module = optimized_module(nn.BCELoss(), fallback="raise")
    x = (ROWS**2).clamp(0.1, 0.9).requires_grad_()
    (grad,) = torch.autograd.grad(module(x, ROWS**2), x)
    (expected,) = torch.autograd.grad(F.binary_cross_entropy(x, ROWS**2), x)
    torch.testing.assert_close(grad, expected)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        module(x, ROWS)
