"""One scenario run twice, on a module as it is and on the module optimized: all that comes out has to be the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from daceopt import optimized_module

Scenario = Callable[[Callable[[Any], Any]], Any]


def check(scenario: Scenario, fallback: str = "raise", **options: Any) -> None:
    """``scenario(optimize)`` makes its modules, passes each through ``optimize`` and returns whatever it saw."""
    expected = _outcome(scenario, lambda module: module)
    found = _outcome(scenario, lambda module: optimized_module(module, fallback=fallback, **options))
    assert_same(found, expected)


def module(forward: Callable[..., Any], **state: Any) -> nn.Module:
    """A module with that ``forward``; tensors among its attributes are parameters, of integers buffers."""
    made = type("Net", (nn.Module,), {"forward": forward})()
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = nn.Parameter(value.clone())
        elif isinstance(value, torch.Tensor):
            made.register_buffer(name, value.clone())
            continue
        setattr(made, name, value)
    return made


def normal(*shape: int) -> torch.Tensor:
    """Normal numbers of float64, the same ones for the same shape."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7 + sum(shape)))


def grads(net: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor | None]:
    return [p.grad for p in net.parameters()] + [x.grad for x in inputs]


def _outcome(scenario: Scenario, optimize: Callable[[Any], Any]) -> Any:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (models draw from the global generator)
    try:
        return scenario(optimize)
    except (RuntimeError, TypeError, ValueError) as error:
        return type(error), str(error)[:50]


def assert_same(found: Any, expected: Any, where: str = "result") -> None:
    """The same values up to the rounding of float64, types, shapes, strides and need of gradients."""
    assert type(found) is type(expected), f"{where} is {found!r}; expected {expected!r}"
    if isinstance(expected, torch.Tensor):
        _assert_same_tensor(found, expected, where)
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected), f"{where} has the keys {list(found)}; expected {list(expected)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), f"{where} has {len(found)} parts; expected {len(expected)}"
        for k, (a, b) in enumerate(zip(found, expected)):
            assert_same(a, b, f"{where}[{k}]")
    else:
        assert found == expected or (found != found and expected != expected), f"{where}: {found!r}, not {expected!r}"


def _assert_same_tensor(found: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    assert found.requires_grad == expected.requires_grad, f"{where}: requires_grad is {found.requires_grad}"
    assert found.shape == expected.shape, f"{where} has shape {tuple(found.shape)}; expected {tuple(expected.shape)}"
    steps = [[s for s, n in zip(t.stride(), t.shape) if n > 1 and t.numel()] for t in (found, expected)]
    assert steps[0] == steps[1], f"{where} has strides {found.stride()}; expected {expected.stride()}"
    double = expected.dtype in (torch.float64, torch.complex128)
    bounds = {"rtol": 1e-9, "atol": 1e-12} if double else {"rtol": None, "atol": None}
    torch.testing.assert_close(
        found.detach(), expected.detach(), equal_nan=True, msg=lambda m: f"{where}: {m}", **bounds
    )
