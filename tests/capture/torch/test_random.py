"""Random operators: distributions, kinds, equal calls that differ, and gradients by the very numbers drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

from tests.capture.torch.checking import hosted, make_backend
from tests.capture.torch.interpreted import compile_interpreted

_MANY = 20_000


def run(fn: Callable[..., Any], *args: Any) -> Any:
    """``fn`` through the front end, with nothing left to ATen; the same numbers in each test run."""
    torch.manual_seed(1)
    backend = make_backend(compile_interpreted)
    torch._dynamo.reset()
    found = torch._dynamo.optimize(backend, nopython=True)(fn)(*args)
    assert not hosted(backend)
    return found


# function of n, then mean and standard deviation
DISTRIBUTIONS: dict[str, tuple[Callable[[int], torch.Tensor], float, float]] = {
    "rand": (lambda n: torch.rand(n), 0.5, 12**-0.5),
    "rand_bfloat16": (lambda n: torch.rand(n, dtype=torch.bfloat16), 0.5, 12**-0.5),
    "rand_like": (lambda n: torch.rand_like(torch.zeros(n, dtype=torch.float64)), 0.5, 12**-0.5),
    "uniform": (lambda n: torch.empty(n).uniform_(-1, 3), 1.0, 4 * 12**-0.5),
    "randn": (lambda n: torch.randn(n), 0.0, 1.0),
    "randn_like": (lambda n: torch.randn_like(torch.zeros(n)), 0.0, 1.0),
    "normal": (lambda n: torch.empty(n).normal_(2, 3), 2.0, 3.0),
    "normal_tensors": (lambda n: torch.normal(torch.full((n,), 1.5), torch.full((n,), 0.5)), 1.5, 0.5),
    "normal_mean": (lambda n: torch.normal(torch.full((n,), 1.5), 0.5), 1.5, 0.5),
    "normal_std": (lambda n: torch.normal(1.5, torch.full((n,), 0.5)), 1.5, 0.5),
    "randint": (lambda n: torch.randint(3, 8, (n,)), 5.0, 2**0.5),
    "randint_like": (lambda n: torch.randint_like(torch.zeros(n), 5), 2.0, 2**0.5),
    "bernoulli": (lambda n: torch.bernoulli(torch.full((n,), 0.2)), 0.2, 0.4),
    "bernoulli_p": (lambda n: torch.empty(n).bernoulli_(0.2), 0.2, 0.4),
    "exponential": (lambda n: torch.empty(n).exponential_(2.0), 0.5, 0.5),
    "geometric": (lambda n: torch.empty(n).geometric_(0.5), 2.0, 2**0.5),
    "log_normal": (lambda n: torch.empty(n).log_normal_(0.0, 0.25).log(), 0.0, 0.25),
    "cauchy": (lambda n: torch.empty(n).cauchy_().atan(), 0.0, 3.14159 * 12**-0.5),
    "multinomial": (lambda n: torch.multinomial(torch.tensor([1.0, 0.0, 1.0]), n, True), 1.0, 1.0),
    "dropout": (lambda n: F.dropout(torch.ones(n), 0.2), 1.0, 0.5),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str) -> None:
    fn, mean, deviation = DISTRIBUTIONS[name]
    first, second = run(lambda: (fn(_MANY), fn(_MANY)))
    assert first.dtype == fn(8).dtype and not torch.equal(first, second)
    numbers = first.double()
    assert abs(numbers.mean() - mean) < 5 * deviation * _MANY**-0.5
    assert abs(numbers.std() - deviation) < 0.05 * deviation
    assert numbers[1:].mul(numbers[:-1]).mean() - mean**2 < 10 * max(deviation, deviation**2, abs(mean)) * _MANY**-0.5


def test_half_types_stay_below_one() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert run(lambda dtype=dtype: torch.rand(_MANY, dtype=dtype)).max() < 1


def test_each_call_draws_anew() -> None:
    backend = make_backend(compile_interpreted)
    torch._dynamo.reset()
    fn = torch._dynamo.optimize(backend, nopython=True)(lambda: torch.rand(8))
    torch.manual_seed(3)
    first, second = fn(), fn()
    torch.manual_seed(3)
    assert not torch.equal(first, second) and torch.equal(first, fn())


@pytest.mark.share(2)
@pytest.mark.parametrize("p", [0.25, 0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_and_its_gradient_agree(p: float, dtype: torch.dtype) -> None:
    x = torch.rand(400, dtype=dtype).add(0.5).requires_grad_()
    y = run(lambda x: F.dropout(x, p), x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    assert torch.equal(grad, (y != 0).to(dtype) * torch.tensor(scale, dtype=dtype))
    assert p == 1 or abs((y != 0).double().mean() - (1 - p)) < 0.15


@pytest.mark.parametrize("p", [0.25, 1.0])
def test_dropped_elements_that_are_not_finite_are_nan(p: float) -> None:
    """PyTorch multiplies by a mask, in both directions."""
    x = torch.tensor([float("inf"), float("nan"), -1.0]).repeat(100).requires_grad_()
    y = run(lambda x: F.dropout(x, p), x)
    (factor,) = torch.autograd.grad(y, x, torch.ones_like(x), retain_graph=True)
    (grad,) = torch.autograd.grad(y, x, x.detach())
    for found in (y, grad):
        torch.testing.assert_close(found.detach(), x.detach() * factor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "layer",
    [
        lambda x: F.alpha_dropout(x, 0.3, training=True),
        lambda x: F.dropout1d(x.reshape(1, 20, 20), 0.5).reshape(-1),
        lambda x: F.feature_alpha_dropout(x.reshape(1, 20, 20), 0.5, training=True).reshape(-1),
        lambda x: torch.native_dropout(x, 0.5, True)[0],
        lambda x: F.rrelu(x, 0.1, 0.4, training=True),
    ],
)
def test_random_layers_are_differentiated_by_what_they_drew(layer: Callable[..., Any]) -> None:
    """All are linear in each element where they stand."""
    x = torch.linspace(-2, 2, 400).requires_grad_()
    y, at_zero = run(lambda x: (layer(x), 0), x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    offset = (y - grad * x).detach()
    assert at_zero == 0 and len(grad.unique()) >= 2
    assert len(offset.mul(1e4).round().unique()) <= 2


def test_dropout_without_training_is_the_identity() -> None:
    x = torch.rand(5)
    assert torch.equal(run(lambda x: F.dropout(x, 0.5, training=False) + 0, x), x)
    y, mask = run(lambda x: torch.native_dropout(x, 0.5, False), x)
    assert torch.equal(y, x) and mask.dtype == torch.bool and mask.all()


def test_no_gradient_passes_through_draws() -> None:
    mean = torch.ones(4, requires_grad=True)
    y = run(lambda m: torch.normal(m, 1.0) + m, mean)
    assert torch.equal(torch.autograd.grad(y.sum(), mean)[0], torch.ones(4))


def test_permutations() -> None:
    a, b = run(lambda: (torch.randperm(50), torch.randperm(50, dtype=torch.int32)))
    assert sorted(a.tolist()) == sorted(b.tolist()) == list(range(50)) and a.tolist() != b.tolist()
    assert b.dtype == torch.int32


def test_choices_without_replacement() -> None:
    weights = torch.tensor([[0.1, 0.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    found = run(lambda w: torch.multinomial(w.expand(500, 2, 4).reshape(1000, 4), 3), weights)
    assert found.dtype == torch.int64 and all(len(set(row)) == 3 for row in found.tolist())
    assert not (found[::2] == 1).any()
    assert (found[::2, 0] == 2).double().mean() == pytest.approx(3.0 / 4.1, abs=0.1)


def test_a_generator_of_the_callers_own_is_refused() -> None:
    from daceopt.capture.torch.aten.random import _refuse_generator
    from daceopt.errors import Unsupported

    with pytest.raises(Unsupported, match="generator"):
        _refuse_generator({"generator": torch.Generator()})
