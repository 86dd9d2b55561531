"""Calls that go past Dynamo: which ones do, with what their guards read, and that the others are looked at again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from daceopt import optimized_module
from daceopt.modules.dispatch import Dispatcher
from daceopt.modules.fast_path import Frame
from tests.twins import check, module, normal


def _surrounded() -> Callable[..., Any]:
    outer = 3

    def inside(self, x, *args, scale=outer, **kwargs):
        return outer

    return inside


SIGNATURES: tuple[Callable[..., Any], ...] = (
    lambda self: 0,
    lambda self, x, y=2: 0,
    lambda self, /, x: 0,
    lambda self, *args: 0,
    lambda self, x=1, *args: 0,
    lambda self, **kwargs: 0,
    lambda *args, **kwargs: 0,
    lambda self, *, x, y=5: 0,
    lambda self, x, /, **kwargs: 0,
    lambda self, x, y=2, *args, z, w=4, **kwargs: 0,
    _surrounded(),
)

pytestmark = pytest.mark.usefixtures("interpreted")
CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((0,), {}),
    ((0, 1), {}),
    ((0, 1, 2, 3), {}),
    ((0,), {"x": 1}),
    ((0, 1), {"x": 1}),
    ((0, 1), {"y": 1, "z": 2}),
    ((0, 1), {"z": 2, "y": 1}),
    ((0, 1), {"other": 1, "z": 2, "another": 3}),
    ((), {"self": 0, "x": 1}),
)


def _variables(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """What Python binds, as the standard library tells it, whose 3.13.0 binds calls that Python refuses."""
    try:
        function(*args, **kwargs)
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return {**bound.arguments, **inspect.getclosurevars(function).nonlocals}


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_arguments_become_variables_as_python_binds_them(call):
    args, kwargs = call
    for function in SIGNATURES:
        expected = _variables(function, args, kwargs)
        found = Frame(function).bind(args, kwargs)  # type: ignore[arg-type]
        assert found == expected, inspect.signature(function)
        rest = (found or {}).get("kwargs", {})
        assert list(rest) == [k for k in kwargs if k in rest]


def test_a_variable_without_a_value_is_left_to_dynamo():
    def surrounded():
        if len(SIGNATURES) == 0:
            later = 1
        return lambda self: later

    assert Frame(surrounded()).bind((0,), {}) is None


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        kwargs.pop("flag", None)
        return function(self, *args, **kwargs)

    return wrapper


def _forward(self, x, y=None, *, scale=1.0):
    return x.sin() * scale if y is None else x.sin() * y * scale


def _named_only(self, *, x, y=None, scale=1.0):
    return _forward(self, x, y, scale=scale)


@pytest.mark.parametrize(
    "forward", [_wrapped(_forward), _wrapped(_wrapped(_forward)), _forward], ids=["wrapped", "wrapped twice", "plain"]
)
def test_variadic_forwards_go_past_dynamo(forward, monkeypatch):
    net = optimized_module(module(forward), fallback="raise")
    x, y = normal(3), normal(3) + 4
    calls = [((x,), {}), ((x, y), {}), ((x,), {"y": y, "scale": 2.0}), ((x,), {"scale": 2.0, "y": y})]
    expected = [net(*args, **kwargs) for args, kwargs in calls]
    monkeypatch.setattr(Dispatcher, "_through_dynamo", None)
    for (args, kwargs), before in zip(calls, expected):
        torch.testing.assert_close(net(*args, **kwargs), before, rtol=0, atol=0)
        torch.testing.assert_close(before, _forward(None, *args, **kwargs))


def test_keyword_only_arguments_go_past_dynamo(monkeypatch):
    net = optimized_module(module(_named_only), fallback="raise")
    before = net(x=normal(3))
    monkeypatch.setattr(Dispatcher, "_through_dynamo", None)
    torch.testing.assert_close(net(x=normal(3)), before, rtol=0, atol=0)


def test_what_changes_among_variadic_arguments_is_seen():
    def scenario(optimize):
        def forward(self, x, *args, **kwargs):
            for value in args:
                x = x * value
            for name, value in kwargs.items():
                x = x.sin() if name == "sine" and value else x - value
            return x

        net, x = optimize(module(_wrapped(forward))), normal(3)
        orders = ({"sine": 1, "less": 2.0}, {"less": 2.0, "sine": 1}, {"sine": 0, "less": 2.0}, {"sine": True})
        tails = ((), (2.0,), (2.0, 3), (normal(3),), (2.0, normal(3)), (2.0,))
        return [net(x, *tail, **order) for _ in range(3) for tail in tails for order in orders]

    check(scenario)


def test_the_order_of_keywords_counts_where_exceptions_are_caught():
    def scenario(optimize):
        def inner(x, **kwargs):
            for name, value in kwargs.items():
                x = x.sin() if name == "sine" else x - value
            return x

        def forward(self, x, **kwargs):
            try:
                less = kwargs["absent"]
            except KeyError:
                less = 1.0
            return inner(x * less, **kwargs)

        net, x = optimize(module(forward)), normal(3)
        orders = ({"sine": 1, "less": 2.0}, {"less": 2.0, "sine": 1}, {"less": 2.0, "absent": 3.0})
        return [net(x, **order) for _ in range(2) for order in orders]

    check(scenario)


def test_what_a_wrapper_closes_over_is_read_at_each_call():
    def scenario(optimize):
        factor: Any = None

        def forward(self, *args):
            return args[0] * factor

        def called(value):
            nonlocal factor
            factor = value
            return net(normal(3))

        net = optimize(module(forward))
        return [called(value) for value in (2.0, 2.0, 3.0, 3, 2.0)]

    check(scenario)


def test_a_wrong_call_of_a_variadic_forward_fails_as_in_eager():
    def scenario(optimize):
        net, seen = optimize(module(_wrapped(_forward))), []
        for kwargs in ({}, {}, {"unknown": 1}, {}, {"flag": 1}, {"x": normal(3)}, {}):
            try:
                seen.append(net(normal(3), **kwargs))
            except TypeError:
                seen.append(TypeError)
        return seen

    check(scenario, fallback="silent")


def _function(factor: int) -> Callable[..., Any]:
    defined: dict[str, Any] = {}
    exec(f"def scaled(x):\n    return x * {factor}", defined)
    return defined.pop("scaled")


def test_an_object_at_the_address_of_a_dead_one_is_another():
    net = optimized_module(module(lambda self, x: self.function(x)), fallback="silent")
    seen = []
    for k in range(24):
        net.function = None
        net.function = _function(k % 7)
        seen.append((net(normal(2)) / normal(2)).mean().round().item() == k % 7)
    assert all(seen), seen


@pytest.mark.parametrize("backward", [True, False])
def test_calls_in_a_fixed_mode_go_past_dynamo(backward, monkeypatch):
    net = optimized_module(module(lambda self, x: x * self.w, w=normal(3)), fallback="raise", backward=backward)
    modes = (torch.enable_grad, torch.no_grad)
    expected = [_in(mode, net) for mode in modes]
    monkeypatch.setattr(Dispatcher, "_through_dynamo", None)
    for mode, before in zip(modes, expected):
        found = _in(mode, net)
        torch.testing.assert_close(found, before, rtol=0, atol=0)
        assert found.requires_grad == before.requires_grad == (backward and mode is torch.enable_grad)


def _in(mode: Any, net: Any) -> torch.Tensor:
    with mode():
        result: torch.Tensor = net(normal(3))
    return result
