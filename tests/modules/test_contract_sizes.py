"""Batch sizes, ranks and wrong calls, on built programs: how many programs there are, and that none is wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from tests.modules.test_module_built import assert_same_step, inputs


def pair(reference: nn.Module, **options) -> tuple[nn.Module, nn.Module]:
    return reference, optimized_module(copy.deepcopy(reference), **{"fallback": "raise", **options})


def test_no_size_compiles_after_the_second_even_when_the_first_is_one():
    reference, ours = pair(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))
    for batch in (1, 2, 3, 7, 1):
        assert_same_step(ours, reference, inputs(batch, 4))
    assert ours.daceopt.stats.programs == 2


def test_an_empty_batch():
    reference, ours = pair(nn.Sequential(nn.Linear(4, 5), nn.Tanh()))
    for module in (reference, ours):
        out = module(torch.zeros(0, 4))
        out.sum().backward()
        assert out.shape == (0, 5)
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in module.parameters())


class Add(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * torch.sigmoid(b)


def test_axes_that_broadcast_in_one_call_and_not_in_the_next():
    reference, ours = pair(Add())
    for left, right in ((1, 4), (4, 4), (6, 6), (6, 1), (1, 1), (3, 1), (1, 5)):
        a, b = inputs(left, 3), inputs(right, 3) + 1
        torch.testing.assert_close(ours(a, b), reference(a, b))


def test_a_wrong_call_leaves_the_generalisation_over_sizes_alone(capfd):
    reference, ours = pair(nn.Linear(4, 3), fallback="warn")
    ours(inputs(2, 4))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        ours(inputs(2, 5))
    assert "Traceback" not in capfd.readouterr().err, "PyTorch's own log of the attempt is noise beside the error"
    for batch in (3, 4, 5):
        assert torch.allclose(ours(inputs(batch, 4)), reference(inputs(batch, 4)), atol=1e-6)
    assert (ours.daceopt.stats.programs, ours.daceopt.stats.eager_calls) == (2, 0)


def test_numbers_and_other_ranks_and_dtypes_get_programs_of_their_own():
    reference, ours = pair(nn.Softplus())
    for a in (torch.tensor(0.5), inputs(3), inputs(2, 3), inputs(2, 3).double()):
        found = ours(a)
        assert (found.shape, found.dtype) == (a.shape, a.dtype)
        torch.testing.assert_close(found, reference(a))
    assert ours.daceopt.stats.programs == 4
