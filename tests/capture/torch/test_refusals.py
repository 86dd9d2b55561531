"""Calls that eager PyTorch refuses because of element types are refused, not computed in some way of our own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt import optimized_module
from daceopt.errors import Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")

x, n = torch.tensor([[0.5, 2.0], [1.0, 3.0]]), torch.tensor([[1, 2], [3, 4]])


class Net(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.function(x, n)


REFUSED = {
    "difference of a bool": lambda x, n: x - (n > 1),
    "less a bool": lambda x, n: x - True,
    "variance of integers": lambda x, n: n.std(),
    "negative power": lambda x, n: n**-1,
    "floats into integers": lambda x, n: n.clone().mul_(x),
    "infinity into integers": lambda x, n: n.clone().fill_(float("inf")),
    "fraction of an integer": lambda x, n: torch.add(n, n, alpha=0.5),
    "labels": lambda x, n: F.cross_entropy(x, n[0].int()),
    "another type in a sum": lambda x, n: x.index_add(0, n[0] - 1, n),
    "no kernel": lambda x, n: F.silu(n),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_the_error_is_that_of_eager(function) -> None:
    with pytest.raises(RuntimeError) as expected:
        Net(function)(x, n)
    with pytest.raises(RuntimeError) as found:
        optimized_module(Net(function), fallback="silent")(x, n)
    assert str(found.value).startswith(str(expected.value).splitlines()[0])


def test_a_result_of_another_type_than_shape_rules_say_is_refused() -> None:
    """The decomposition of ``ldexp`` takes integers for float32, ATen for the type of the exponent."""
    integers, exponent = torch.tensor([1, 2], dtype=torch.int32), torch.tensor(2.0, dtype=torch.float16)
    with pytest.raises(Unsupported, match="float16.*float32"):
        optimized_module(Net(torch.ldexp), fallback="raise")(integers, exponent)
    found = optimized_module(Net(torch.ldexp), fallback="silent")(integers, exponent)
    torch.testing.assert_close(found, torch.ldexp(integers, exponent))


def test_what_meets_and_is_allowed_is_compiled() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        flags = n > 1
        moved = x.masked_fill(flags, 0).gather(1, n % 2) + n.sum(dtype=torch.float32)
        return [moved, n**2, ~flags, torch.where(flags, n, 7), x.softmax(0)[n[0] - 1], F.one_hot(n, 5).argmax(-1)]

    state = torch.get_rng_state()
    ours = optimized_module(Net(function), fallback="raise")
    for found, expected in zip(ours(x, n), function(x, n), strict=True):
        torch.testing.assert_close(found, expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_size_that_the_data_decides_is_compared_with_another() -> None:
    """Where the two differ, the error is eager's."""
    function = lambda x, n: x / torch.bincount(n.flatten(), minlength=2)  # noqa: E731
    net, x, n = optimized_module(Net(function), fallback="raise"), torch.randn(3, 2), torch.arange(6)
    torch.testing.assert_close(net(x, n % 2), function(x, n % 2))
    with pytest.raises(RuntimeError, match="The size of tensor a"):
        net(x, n % 3)
