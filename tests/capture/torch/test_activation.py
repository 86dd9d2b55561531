"""Activations and their derivatives at kinks, bounds, infinities and NaN, in all float types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.capture.torch.checking import check
from tests.capture.torch.test_pointwise import ANY, FINITE, values

aten = torch.ops.aten
Fn = Callable[..., Any]

ACTIVATIONS: dict[str, Fn] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "hardtanh_bounds": lambda x: F.hardtanh(x, -0.5, 2.75),
    "elu": F.elu,
    "elu_alpha": lambda x: F.elu(x, 0.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.7),
    "leaky_relu": F.leaky_relu,
    "leaky_relu_steep": lambda x: F.leaky_relu(x, 2.5),
    "leaky_relu_flat": lambda x: F.leaky_relu(x, 0.0),
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.5, 3.0),
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "glu": lambda x: F.glu(x, 0),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.4),
    "prelu": lambda x: F.prelu(x, x.new_full((1,), 0.25)),
}


# ATen's derivatives at NaN depend on the type, or on whether an element fills a vector register with others
FLAT = ("relu6", "hardtanh", "hardtanh_bounds", "softshrink", "hardshrink")
OF_TWO_MINDS = ("elu", "elu_alpha", "selu", "celu", "hardswish", *FLAT)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_everywhere(name: str) -> None:
    check(ACTIVATIONS[name], values([1.25, *ANY[1:]] if name in OF_TWO_MINDS else ANY))


@pytest.mark.parametrize("name", FLAT)
def test_few_elements_with_a_nan(name: str) -> None:
    check(ACTIVATIONS[name], torch.tensor([-7.0, -0.5, 0.0, 0.5, 1.0, 7.0, float("nan")]))


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types(name: str, dtype: torch.dtype) -> None:
    single = ("hardsigmoid", "celu")  # whose derivatives ATen computes with constants of float32
    check(ACTIVATIONS[name], values(FINITE, dtype), grad=dtype != torch.float64 or name not in single)


@pytest.mark.share(2)
@pytest.mark.parametrize("fn", [F.relu, F.relu6, lambda x: F.hardtanh(x, -2, 2), lambda x: F.threshold(x, 3, 1)])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_integers(fn: Fn, dtype: torch.dtype) -> None:
    check(fn, torch.tensor([-5, -2, 0, 2, 3, 7]).to(dtype))


@pytest.mark.parametrize("shape", [(1,), (3,)])
def test_slopes_are_trained(shape: tuple[int, ...]) -> None:
    x = values(FINITE[:12]).reshape(2, 3, 2)
    check(F.prelu, x, torch.linspace(0.1, 0.5, shape[0]))


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    check(lambda x: (F.silu(x), F.elu(x), F.hardswish(x), F.softplus(x)), torch.full(shape, 0.3))


def test_dynamic_sizes() -> None:
    check(lambda x: F.hardtanh(F.leaky_relu(x) + F.gelu(x)), torch.rand(3, 4), dynamic=True)


BACKWARDS: dict[str, Fn] = {
    "sigmoid": lambda g, x: aten.sigmoid_backward(g, x),
    "tanh": lambda g, x: aten.tanh_backward(g, x),
    "silu": lambda g, x: aten.silu_backward(g, x),
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu_tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.5),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1, 1),
    "hardsigmoid": lambda g, x: aten.hardsigmoid_backward(g, x),
    "hardswish": lambda g, x: aten.hardswish_backward(g, x),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "log_sigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "logit": lambda g, x: aten.logit_backward(g, x, 0.1),
    "logit_open": lambda g, x: aten.logit_backward(g, x),
    "elu": lambda g, x: aten.elu_backward(g, 0.5, 1.5, 2.0, False, x),
    "elu_of_result": lambda g, x: aten.elu_backward(g, 0.5, 1.5, 2.0, True, x),
    "mish": lambda g, x: aten.mish_backward(g, x),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_derivatives(name: str, dtype: torch.dtype) -> None:
    check(BACKWARDS[name], values(FINITE[::-1], dtype), values(FINITE, dtype), grad=False)


def test_what_is_written_into_an_idle_dropout_is_written_into_its_argument() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        F.dropout(y, 0.5, training=False).relu_()
        return y

    check(fn, torch.randn(4))
