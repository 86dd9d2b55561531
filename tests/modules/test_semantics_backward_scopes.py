"""Where gradients stop inside of a checkpointed region, and second derivatives through backwards and hooks that detach,
switch gradients off, or write behind autograd's back."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import grad
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from daceopt import optimized_module
from daceopt.errors import Unsupported
from tests.twins import check, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")


def _function(backward):
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3 / 3

        @staticmethod
        def backward(ctx, g):
            return backward(*ctx.saved_tensors, g)

    return Custom


def _written_where_off(x, g):
    h = g * x
    with torch.no_grad():
        h[0].mul_(3)
    return h * x


def _written_where_detached(x, g):
    h = g * x
    h.detach().mul_(3)
    return h * x


def _computed_where_off(x, g):
    with torch.no_grad():
        k = (x * x).sin()
        with torch.enable_grad():
            j = x.cos()
    return g * x * k * j


@torch.no_grad()
def _wave(x):
    return x.square().sin()


def _result_where_off(x, g):
    with torch.no_grad():
        return g * x * x


def _switched(x, g):
    torch.set_grad_enabled(False)
    k = x.cos()
    torch.set_grad_enabled(True)
    return g * k * x


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, k):
        ctx.save_for_backward(a)
        return a.sin() * k, a * k

    @staticmethod
    def backward(ctx, g, h):
        (a,) = ctx.saved_tensors
        return g * a.cos() * a.square().detach() + h * 2, None


def _another_function(x, g):
    a, b = _Inner.apply(g * x, 3)
    with torch.no_grad():
        c, _ = _Inner.apply(x, 2)
    return a * b * c


BACKWARDS = {
    "a write where gradients are off": _written_where_off,
    "a write into a detached value": _written_where_detached,
    "a value where gradients are off": _computed_where_off,
    "a function without gradients": lambda x, g: g * x * _wave(x),
    "a detached value": lambda x, g: g * x * (x * x).detach(),
    "a detached gradient": lambda x, g: g.detach() * x,
    "a result where gradients are off": _result_where_off,
    "switches": _switched,
    "another function": _another_function,
}


def _second(net, *operands):
    first = grad(net(*operands).sum(), operands, create_graph=True)
    sum(g.square().sum() for g in first).backward()
    return [g.detach() for g in first], [x.grad for x in operands], [p.grad for p in net.parameters()]


@pytest.mark.parametrize("name", BACKWARDS)
def test_second_derivative_of_a_custom_function(name):
    function = _function(BACKWARDS[name])

    def scenario(optimize):
        net = optimize(module(lambda self, x: function.apply((x @ self.w).sin()).tanh() * x, w=normal(3, 3)))
        return _second(net, normal(3, 3).requires_grad_())

    check(scenario)


def test_third_derivative_of_a_custom_function():
    function = _function(_computed_where_off)

    def scenario(optimize):
        net, x = optimize(module(lambda self, x: function.apply(x.sin()).tanh())), normal(3, 3).requires_grad_()
        (first,) = grad(net(x).sum(), x, create_graph=True)
        (second,) = grad(first.square().sum(), x, create_graph=True)
        return first.detach(), second.detach(), grad(second.square().sum(), x)

    check(scenario)


def _hook_where_off(g):
    with torch.no_grad():
        k = g.sin()
    return g * k


def _hook_that_writes(g):
    h = g.clone()
    with torch.no_grad():
        h.mul_(2)
    return h * g


HOOKS = [_hook_where_off, _hook_that_writes, lambda g: g * g.detach(), torch.no_grad()(lambda g: g * 3)]


@pytest.mark.parametrize("hook", HOOKS)
def test_second_derivative_behind_a_hook(hook):
    def forward(self, x):
        y = (x @ self.w).sin()
        y.register_hook(hook)
        return (y * x).tanh()

    check(lambda optimize: _second(optimize(module(forward, w=normal(3, 3))), normal(3, 3).requires_grad_()))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


@pytest.mark.parametrize("is_twice", [False, True])
def test_a_function_that_is_differentiable_once(is_twice):
    """Its first derivative may be asked for with a graph; the second raises."""

    def scenario(optimize):
        net, x = optimize(module(lambda self, x: _Once.apply(x.sin()).tanh())), normal(3, 3).requires_grad_()
        (first,) = grad(net(x).sum(), x, create_graph=True)
        if is_twice:
            first.sum().backward()
        return first.detach()

    check(scenario)


def test_a_backward_that_asks_whether_gradients_are_on():
    function = _function(lambda x, g: g * x if torch.is_grad_enabled() else g * x * x)
    net, x = optimized_module(module(lambda self, x: function.apply(x))), normal(3, 3).requires_grad_()
    assert torch.equal(grad(net(x).sum(), x)[0], x.detach() ** 2)
    with pytest.raises(Unsupported, match="asks whether gradients are on"):
        grad(net(x).sum(), x, create_graph=True)


def _scaling(factor):
    class Scaling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * factor

    return Scaling


def _by_what_is_between(net, x):
    h, y = net(x)
    return grad(y.sum(), h)


@pytest.mark.usefixtures("built")
def test_programs_of_gradients_are_not_those_of_other_backwards():
    """What is alike but for the backward of a custom function has gradients of its own."""

    def forwards(function):
        return (
            lambda self, x: function.apply(self.w) * x.sin(),
            lambda self, x: (x * self.w, function.apply((x * self.w).sin()) * 3),
        )

    for factor in (-1.0, 4.0):
        second, between = forwards(_scaling(factor))
        check(lambda optimize, f=second: _second(optimize(module(f, w=normal(3))), normal(3).requires_grad_()))
        check(lambda optimize, f=between: _by_what_is_between(optimize(module(f, w=normal(3))), normal(3)))


def _off_in_region(w, x):
    with torch.no_grad():
        k = (x @ w).cos()
    return (x @ w) * k


def _written_in_region(w, x):
    h = x @ w
    with torch.no_grad():
        h[0].mul_(2)
    return h * x


def _read_before_it_has_a_hook(w, x):
    h = x @ w
    k = h.sin()
    h.register_hook(lambda g: g * 3)
    return h * x + k


REGIONS = {
    "off": _off_in_region,
    "a function without gradients": lambda w, x: (x @ w) * _wave(x @ w),
    "nothing but that": lambda w, x: _wave(x @ w),
    "detached": lambda w, x: (x @ w) * x.detach(),
    "written": _written_in_region,
    "in a region of its own": lambda w, x: checkpoint(_off_in_region, w, x, use_reentrant=False) * x.cos(),
    "a hook": _read_before_it_has_a_hook,
}


@pytest.mark.parametrize("name", REGIONS)
def test_where_gradients_stop_in_a_checkpointed_region(name):
    def forward(self, x):
        return checkpoint(REGIONS[name], self.w, x, use_reentrant=False) * (x @ self.w)

    def scenario(optimize):
        net, x = optimize(module(forward, w=normal(3, 3))), normal(3, 3).requires_grad_()
        net(x).square().sum().backward()
        return x.grad, net.w.grad

    check(scenario, fallback="silent")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("is_leaf", [False, True])
def test_a_reentrant_region_has_gradients_by_its_arguments_alone(is_reentrant, is_leaf):
    def forward(self, x):
        region = checkpoint(lambda t: (t @ self.w).sin(), x, use_reentrant=is_reentrant)
        return region * self.w

    def scenario(optimize):
        net, x = optimize(module(forward, w=normal(3, 3))), normal(3, 3).requires_grad_(is_leaf)
        net(x).square().sum().backward()
        return x.grad, net.w.grad

    check(scenario)
