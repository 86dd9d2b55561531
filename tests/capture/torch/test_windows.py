"""Convolutions, pools and interpolation beside eager PyTorch, in both directions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.capture.torch.checking import check

_FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


# -------------------------------------------------------------------- convolutions

CONVOLUTIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "1d": (1, {"padding": 1}),
    "strided": (2, {"stride": 2, "padding": (1, 2)}),
    "dilated": (2, {"dilation": (2, 1)}),
    "groups": (2, {"groups": 2, "padding": 1}),
    "same": (2, {"padding": "same"}),
    "3d": (3, {"stride": (1, 2, 1), "padding": 1}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    rank, options = CONVOLUTIONS[name]
    groups = options.get("groups", 1)
    x, w, b = _random(2, 4, *[6] * rank), _random(6, 4 // groups, *[3] * rank), _random(6)
    check(lambda x, w, b: _FUNCTIONS[rank](x, w, b, **options), x, w, b)


TRANSPOSED: dict[str, tuple[int, dict[str, Any]]] = {
    "1d": (1, {"stride": 2}),
    "output padding": (2, {"stride": 3, "padding": 1, "output_padding": (2, 1)}),
    "padding of the output beyond the stride": (2, {"dilation": 3, "output_padding": 2}),
    "groups": (2, {"groups": 2, "stride": 2, "padding": 2}),
    "3d": (3, {"stride": 2, "padding": 1}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name: str) -> None:
    rank, options = TRANSPOSED[name]
    groups = options.get("groups", 1)
    x, w, b = _random(2, 4, *[4] * rank), _random(4, 6 // groups, *[3] * rank), _random(6)
    check(lambda x, w, b: _TRANSPOSED[rank](x, w, b, **options), x, w, b)


def test_convolution_keeps_channels_last() -> None:
    x = _random(2, 4, 6, 6).to(memory_format=torch.channels_last)
    check(lambda x, w: F.conv2d(x, w), x, _random(6, 4, 3, 3))


def test_convolution_with_time_first() -> None:
    check(lambda x, w, b: torch.conv_tbc(x, w, b, 1), _random(5, 2, 3), _random(3, 3, 4), _random(4))


def test_narrow_convolution() -> None:
    half = {"dtype": torch.bfloat16}
    check(lambda x, w: F.conv2d(x, w), _random(2, 3, 5, 5, **half), _random(4, 3, 3, 3, **half))


# -------------------------------------------------------------------- pools

POOLS: dict[str, Any] = {
    "average": lambda x: F.avg_pool2d(x, 3, 2),
    "average with padding": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average without the padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average beyond the end": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average by a divisor": lambda x: F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, divisor_override=5),
    "average, 1d": lambda x: F.avg_pool1d(x[0], 3),
    "maxima": lambda x: F.max_pool2d(x, 3, 2),
    "maxima of dilated windows": lambda x: F.max_pool2d(x, 2, 1, 1, dilation=2),
    "maxima beyond the end": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "maxima and where": lambda x: F.max_pool2d(x, 3, 2, return_indices=True),
    "maxima without a batch": lambda x: F.max_pool2d(x[0], 3, 2, return_indices=True),
    "norms": lambda x: F.lp_pool2d(x, 2, 3, 2),
    "one average": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive averages of one size": lambda x: F.adaptive_avg_pool2d(x, (3, 7)),
    "adaptive averages": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive averages of more": lambda x: F.adaptive_avg_pool2d(x, (8, 3)),
    "adaptive maxima": lambda x: F.adaptive_max_pool2d(x, (3, 7), return_indices=True),
    "area": lambda x: F.interpolate(x, size=(4, 9), mode="area"),
}


@pytest.mark.parametrize("name", POOLS)
def test_pool(name: str) -> None:
    check(POOLS[name], _random(2, 3, 6, 7))


@pytest.mark.parametrize("name", ["average without the padding", "maxima and where"])
def test_pool_of_symbolic_sizes(name: str) -> None:
    check(POOLS[name], _random(2, 3, 6, 7), dynamic=True)


def test_adaptive_maxima_of_other_sizes_are_left_to_aten() -> None:
    check(lambda x: F.adaptive_max_pool2d(x, (4, 5)), _random(2, 3, 6, 7), native=False)


@pytest.mark.parametrize("value", [-torch.inf, torch.nan, 1.0])
def test_ties_of_maxima(value: float) -> None:
    x = _random(1, 2, 6, 6)
    x[:, :, :4, :4] = value
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


def test_unpooling() -> None:
    where = F.max_pool2d(_random(1, 2, 6, 6), 2, return_indices=True)[1]
    check(lambda y: F.max_unpool2d(y, where, 2), _random(1, 2, 3, 3), native=False)


# -------------------------------------------------------------------- interpolation

RESIZED: dict[str, dict[str, Any]] = {
    "nearest": {"scale_factor": 2},
    "nearest, fewer": {"size": (3, 5)},
    "nearest, a factor of no integer": {"scale_factor": 1.7},
    "nearest-exact": {"size": (4, 10), "mode": "nearest-exact"},
    "bilinear": {"size": (9, 4), "mode": "bilinear"},
    "bilinear at the corners": {"scale_factor": 2, "mode": "bilinear", "align_corners": True},
    "bilinear by factors": {"scale_factor": (1.6, 0.7), "mode": "bilinear"},
    "bilinear by sizes": {"scale_factor": (1.6, 0.7), "mode": "bilinear", "recompute_scale_factor": True},
    "bicubic": {"size": (9, 4), "mode": "bicubic"},
    "bicubic at the corners": {"size": (9, 4), "mode": "bicubic", "align_corners": True},
    "antialias": {"size": (3, 4), "mode": "bilinear", "antialias": True},
    "bicubic antialias": {"size": (3, 9), "mode": "bicubic", "antialias": True},
    "as it is": {"size": (6, 7), "mode": "bilinear"},
}


@pytest.mark.parametrize("name", RESIZED)
def test_interpolation(name: str) -> None:
    check(lambda x: F.interpolate(x, **RESIZED[name]), _random(2, 3, 6, 7))


@pytest.mark.parametrize(("mode", "rank"), [("linear", 1), ("nearest", 1), ("trilinear", 3), ("nearest", 3)])
def test_interpolation_of_other_ranks(mode: str, rank: int) -> None:
    check(lambda x: F.interpolate(x, scale_factor=1.5, mode=mode), _random(2, 3, *[4] * rank))


_REPEATED: dict[str, Any] = {
    "a factor": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "two factors": lambda x: F.interpolate(x, scale_factor=(4.0, 1.0), mode="nearest-exact"),
    "a size": lambda x: F.interpolate(x, size=(2 * x.shape[2], 4 * x.shape[3]), mode="nearest"),
}


@pytest.mark.parametrize("name", _REPEATED)
def test_nearest_of_open_sizes(name: str) -> None:
    check(_REPEATED[name], _random(2, 3, 6, 7), dynamic=True)


def test_nearest_bytes() -> None:
    check(lambda x: F.interpolate(x, scale_factor=2), torch.arange(24, dtype=torch.uint8).reshape(1, 2, 3, 4))


@pytest.mark.share(2)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampling(mode: str, padding: str, aligned: bool) -> None:
    grid = torch.linspace(-1.4, 1.3, 2 * 4 * 5 * 2).reshape(2, 4, 5, 2).roll(7, dims=2)
    options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    check(lambda x, g: F.grid_sample(x, g, **options), _random(2, 3, 6, 7), grid, native=False)


def test_sampling_at_no_position() -> None:
    grid = torch.zeros(1, 3, 2, 2)
    grid[0, 0, 0, 0], grid[0, 1, 1, 1], grid[0, 2, 0, 1] = torch.nan, torch.inf, 1e9
    check(lambda x, g: F.grid_sample(x, g, align_corners=False), _random(1, 2, 4, 5), grid, grad=False)
