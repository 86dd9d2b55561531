"""Hooks on tensors that forward computes are part of its program; others are left to eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from daceopt import optimized_module
from daceopt.errors import DaceoptError, Unsupported
from daceopt.torch_internals.torch_operators import register_hook_op
from tests.twins import check, grads, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")

HOLDS = register_hook_op is not None
"""Whether graphs of Dynamo hold hooks, as they do since 2.13; before, they break there."""

FALLBACK = "raise" if HOLDS else "silent"


def _hooked(self, x):
    h = torch.tanh(x @ self.w)
    scale = x.exp().sum()
    h.register_hook(lambda g: g.clamp(-0.5, 0.5) * scale + h.detach())
    return h.sin(), (h * h).sum()


def test_a_hook_sees_the_whole_gradient():
    def scenario(optimize):
        net, seen = optimize(module(_hooked, w=normal(3, 2))), []
        for _ in range(2):
            x = normal(4, 3).requires_grad_()
            first, second = net(x)
            (first.sum() * 3 + second).backward()
            seen += [first, second, *grads(net, x)]
        return seen

    check(scenario, FALLBACK)


def test_second_order_through_a_hook():
    def forward(self, x):
        h = x * x
        h.register_hook(lambda g: g * g)
        return h.exp()

    def scenario(optimize):
        net, x = optimize(module(forward)), normal(3).requires_grad_()
        (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return [grad, torch.autograd.grad(grad.sum(), x)]

    check(scenario, FALLBACK)


def _read_before(h):
    y = h.sin()
    h.register_hook(lambda g: g * 3)
    return y + h


def _changed(h):
    h.register_hook(lambda g: g * 3)
    return h.mul_(2).sin()


def _of_a_view(h):
    part = h[1:]
    part.register_hook(lambda g: g * 3)
    return part + h.sum()


def _a_result(h):
    h.register_hook(lambda g: g * 3)
    return h


def _three(h):
    scale = h.detach().exp()
    h = h * 1
    h.register_hook(lambda g: g * 3)
    h.register_hook(lambda g: g.clamp(-0.5, 0.5) + scale)
    h.register_hook(lambda g: g.square())
    return h.sin()


def test_several_hooks_see_the_gradient_in_their_order():
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: _three(x * 2))), normal(3).requires_grad_()
        net(x).sum().backward()
        return x.grad

    check(scenario, FALLBACK)


def test_a_result_that_had_a_hook_is_hooked_again():
    def scenario(optimize):
        net, x, seen = optimize(module(lambda self, x: _a_result(x * 2))), normal(3).requires_grad_(), []
        y = net(x)
        y.register_hook(seen.append)
        y.retain_grad()
        seen.append(torch.autograd.grad(y.square().sum(), y, retain_graph=True))
        y.square().sum().backward()
        return seen, y.grad, x.grad

    check(scenario, fallback="silent")


@pytest.mark.parametrize(
    ("function", "reason"),
    [(_read_before, "read before"), (_changed, "written into"), (_of_a_view, "a view"), (_a_result, "a result")],
)
def test_hooks_that_a_program_does_not_have(function, reason):
    """They would see another gradient there, or in another order."""

    def scenario(optimize):
        net, x = optimize(module(lambda self, x: function(x * 2))), normal(3).requires_grad_()
        net(x).sum().backward()
        return x.grad

    check(scenario, fallback="silent")
    refusal, reason = (Unsupported, reason) if HOLDS else (DaceoptError, "a hook on a tensor that forward computes")
    with pytest.raises(refusal, match=reason):
        optimized_module(module(lambda self, x: function(x * 2)), fallback="raise")(normal(3).requires_grad_())


def test_a_hook_where_nothing_requires_a_gradient_is_an_error():
    check(lambda optimize: optimize(module(lambda self, x: _three(x * 2)))(normal(3)), fallback="silent")
