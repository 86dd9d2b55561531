"""Modules on programs that are really built: the ways through that a stand-in cannot show."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from tests.numerics import assert_within_rounding


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def step(module: nn.Module, a: torch.Tensor) -> list[torch.Tensor | None]:
    module.zero_grad()
    a = a.clone().requires_grad_()
    out = module(a)
    out.square().sum().backward()
    return [out, a.grad, *[p.grad for p in module.parameters()], *module.buffers()]


def assert_same_step(ours: nn.Module, reference: nn.Module, a: torch.Tensor) -> None:
    double = copy.deepcopy(reference).double()
    for mine, exact, theirs in zip(step(ours, a), step(double, a.double()), step(reference, a), strict=True):
        assert_within_rounding(mine, exact, theirs)


def test_training_steps_in_both_modes_and_several_batches():
    reference = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), nn.Tanh())
    ours = optimized_module(copy.deepcopy(reference), fallback="raise")
    for mode in (True, False):
        reference.train(mode), ours.train(mode)
        assert_same_step(ours, reference, inputs(6, 4))
    assert int(ours[1].num_batches_tracked) == 1


def test_a_third_batch_size_does_not_compile():
    reference = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ours = optimized_module(copy.deepcopy(reference), fallback="raise")
    for batch in (6, 8, 11):
        assert_same_step(ours, reference, inputs(batch, 4))
    assert ours.daceopt.stats.programs == 2


def test_dropout_follows_the_seed_and_its_backward_uses_the_same_mask():
    ours = optimized_module(nn.Dropout(0.25), fallback="raise")
    a = torch.ones(200, 50, requires_grad=True)
    torch.manual_seed(1)
    first, second = ours(a), ours(a)
    torch.manual_seed(1)
    assert torch.equal(ours(a), first) and not torch.equal(first, second)
    second.sum().backward()
    assert torch.equal(a.grad, second)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.02
    assert torch.equal(ours.eval()(a), a)


def test_an_index_outside_its_table_raises_pytorch_s_error():
    ours = optimized_module(nn.Embedding(4, 2))
    with pytest.raises(IndexError):
        ours(torch.tensor([1, 7]))


def test_the_handle_shows_graphs_and_history():
    ours = optimized_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), fallback="raise")
    ours(inputs(2, 4))
    handle = ours.daceopt
    assert type(handle.sdfg).__name__ == "SDFG" and handle.backward_sdfg is not handle.sdfg
    assert isinstance(handle.history, list) and "1 programs" in repr(handle)


def test_large_results_are_fresh_at_every_call():
    ours = optimized_module(nn.ReLU(), fallback="raise")
    kept = [ours(inputs(512, 512) + k) for k in range(3)]
    for k, out in enumerate(kept):
        assert torch.equal(out, torch.relu(inputs(512, 512) + k))


@pytest.mark.parametrize("module", [nn.ReLU6(), nn.Hardtanh(), nn.Hardtanh(-0.5, 1.0)], ids=str)
def test_bounded_activations_have_no_gradient_at_their_bounds(module: nn.Module) -> None:
    """Where dead channels stand exactly; ``clamp`` has one there."""
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1.0, 5.9, 6.0, 7.0, float("nan")], requires_grad=True)

    def value_and_gradient(f: nn.Module) -> torch.Tensor:
        y = f(x)
        return torch.stack([y.detach(), *torch.autograd.grad(y.sum(), x)])

    ours = value_and_gradient(optimized_module(copy.deepcopy(module), fallback="raise"))
    torch.testing.assert_close(ours, value_and_gradient(module), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("norm", [nn.LayerNorm(257), nn.GroupNorm(3, 6), nn.BatchNorm1d(6)], ids=str)
def test_rows_of_equal_numbers_are_normalized(norm: nn.Module) -> None:
    x = (
        (3 + inputs(4, 6, 1)).expand(4, 6, 257)
        if not isinstance(norm, nn.BatchNorm1d)
        else inputs(6, 1).expand(4, 6, 257)
    )
    assert_same_step(optimized_module(copy.deepcopy(norm), fallback="raise"), copy.deepcopy(norm), x)


@pytest.mark.parametrize("count", [100, 257, 300, 511, 513, 5000])
def test_sums_of_equal_numbers(count: int) -> None:
    """Each addition is rounded to the same side: the error grows with how many follow one another."""
    norm, x = nn.RMSNorm(count, eps=1e-6), (3 + inputs(64, 1)).expand(64, count)
    ours = optimized_module(copy.deepcopy(norm), fallback="raise")(x)
    assert_within_rounding(ours, copy.deepcopy(norm).double()(x.double()), ulps=4)


class _Scores(nn.Module):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x * 50, target)


def test_what_two_kernels_compute_is_the_same_number_in_both() -> None:
    """With the product rounded in one and not in the other, a score is 1e-5 from itself."""
    x, target = inputs(300, 1000), torch.arange(300)

    def gradient(module: nn.Module, dtype: torch.dtype) -> torch.Tensor:
        a = x.to(dtype).requires_grad_()
        return torch.autograd.grad(module(a, target), a)[0]

    ours = gradient(optimized_module(_Scores(), fallback="raise"), torch.float32)
    exact, theirs = gradient(_Scores(), torch.float64), gradient(_Scores(), torch.float32)
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm()


def test_products_are_rounded_before_something_is_added() -> None:
    a, b, c = inputs(3, 1000)

    class Line(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return a * b + c

    assert torch.equal(optimized_module(Line(), fallback="raise")(a, b, c), a * b + c)


class Upsampled(nn.Module):
    """A product whose gradient meets another in an image that stands in memory with its channels innermost."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(1, 4, (1, 2), bias=False)
        self.vector = nn.Parameter(inputs(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.up(x)
        return (image @ self.vector)[..., None] + image


def test_a_product_beside_a_convolution_with_channels_innermost():
    reference = Upsampled()
    a = inputs(1, 1, 2, 2).as_strided((1, 1, 2, 2), (4, 1, 2, 1))
    assert_same_step(optimized_module(copy.deepcopy(reference), fallback="raise"), reference, a)


class Spectral(nn.Module):
    """A layer of a Fourier neural operator, and a kernel of diagonal states as S4D has it."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.mix = nn.Parameter(torch.randn(2, 3, 3, 4, 2, generator=draw))
        self.rates = nn.Parameter(torch.randn(3, 20, 2, generator=draw))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :4], torch.view_as_complex(self.mix))
        out = torch.zeros(x.shape[0], 3, 8, 5, dtype=spectrum.dtype)
        out[:, :, :3, :4] = low
        rates = torch.view_as_complex(self.rates)
        places = torch.arange(8, dtype=x.dtype)
        kernel = ((rates.exp() - 1) / rates)[..., None] * torch.exp(1j * rates.real[..., None] * places)
        return torch.fft.irfft2(out, s=(8, 8)) + kernel.sum(1).real[:, None] + kernel.abs().mean(1)[:, None]


def test_complex_numbers_in_pairs_and_products():
    reference = Spectral()
    assert_same_step(optimized_module(copy.deepcopy(reference), fallback="raise"), reference, inputs(2, 2, 8, 8))
