"""Means and variances: about as near as PyTorch's, wherever the mean is and whatever stands first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.ops.families.moments import moments
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import finish, size_symbol, start

_SHAPE, _AXES = (6, 5, 7), (0, 2)


def _moments(shape: tuple[Any, ...], axes: tuple[int, ...], dtype: Any) -> Graph:
    graph, builder, (x,) = start(shape, dtype=dtype)
    return finish(graph, *moments(builder, x, axes))


def _found(x: np.ndarray, shape: tuple[Any, ...] | None = None) -> list[np.ndarray]:
    """Mean and variance; ``shape``: the array's where it has symbols."""
    graph = _moments(shape or x.shape, _AXES, types.from_name(x.dtype.name))
    with np.errstate(all="ignore"):
        found = interpret(graph, {graph.inputs[0]: x})
    return [found[name] for name in graph.outputs]


def _data(change: Callable[[np.ndarray], None] = lambda x: None) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=_SHAPE).astype(np.float32)
    change(x)
    return x


def _shift(x: np.ndarray) -> None:
    x += np.float32(1e5)


def _outlier(x: np.ndarray) -> None:
    x[0, :, 0] = 1e7


def _tiny(x: np.ndarray) -> None:
    x *= np.float32(1e-19)


def _huge(x: np.ndarray) -> None:
    x *= np.float32(1e18)


@pytest.mark.parametrize("change", [_shift, _outlier, _tiny, _huge])
def test_nothing_cancels_or_overflows(change: Callable[[np.ndarray], None]) -> None:
    x = _data(change)
    variance, mean = torch.var_mean(torch.from_numpy(x), _AXES, correction=0, keepdim=True)
    exact, centre = torch.var_mean(torch.from_numpy(x).double(), _AXES, correction=0, keepdim=True)
    ours = _found(x)
    assert_within_rounding(ours[0], centre, mean)
    assert_within_rounding(ours[1], exact, variance)


def test_equal_numbers_have_their_own_value_as_mean() -> None:
    centre, variance = _found(np.full(_SHAPE, 3.3, np.float32))
    assert (centre == np.float32(3.3)).all() and not variance.any()


def test_what_is_not_finite_stays_in_its_channel() -> None:
    x = _data()
    x[0, 0, 0], x[1, 1, 2], x[0, 2, 0] = np.inf, -np.inf, np.nan
    centre, variance = (a.reshape(-1) for a in _found(x))
    exact = torch.from_numpy(x).double().mean(_AXES).numpy()
    np.testing.assert_array_equal(np.isfinite(centre), [False, False, False, True, True])
    np.testing.assert_allclose(centre, exact, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(variance), [True, True, True, False, False])


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_moments_of_halves_are_of_float32(name: str) -> None:
    x = (_data() + 100).astype(ml_dtypes.bfloat16 if name == "bfloat16" else np.float16)
    wide = torch.from_numpy(x.astype(np.float64))
    exact, centre = torch.var_mean(wide, _AXES, correction=0, keepdim=True)
    ours = _found(x)
    assert [a.dtype for a in ours] == [np.float32, np.float32]
    assert_within_rounding(ours[0], centre)
    assert_within_rounding(ours[1], exact)


@pytest.mark.parametrize("extent", [0, 1, 6])
def test_a_batch_of_any_size(extent: int) -> None:
    """Whose size no one knows: nothing is read of one without elements, whose moments are NaN."""
    x = _data()[:extent]
    centre, variance = _found(x, (size_symbol(), *_SHAPE[1:]))
    wide = torch.from_numpy(x).double()
    np.testing.assert_allclose(centre, wide.mean(_AXES, keepdim=True), rtol=1e-6, atol=1e-7)
    expected = wide.var(_AXES, correction=0, keepdim=True) if extent else wide.mean(_AXES, keepdim=True)
    np.testing.assert_allclose(variance, expected, rtol=1e-6)
