"""Batches of gradients of an optimized module, and the transforms of ``torch.func`` around it and inside of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import grad

from daceopt import optimized_module
from daceopt.errors import Unsupported
from tests.twins import check, grads, module, normal

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning"),  # by PyTorch's forward mode
]


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def test_batches_of_gradients():
    def scenario(optimize):
        net, x = optimize(mlp()), normal(3).requires_grad_()
        y, one = net(x), torch.eye(2, dtype=torch.float64)
        first = grad(y, [x, *net.parameters()], one, is_grads_batched=True, retain_graph=True)
        (g,) = grad(y, x, one, is_grads_batched=True, create_graph=True)
        (h,) = grad(g, x, normal(6, 2, 3), is_grads_batched=True, create_graph=True)
        h.sum().backward()
        return first, g, h, grads(net, x)

    check(scenario)


def test_batches_of_gradients_of_one_of_two_results():
    def scenario(optimize):
        forward = lambda self, x: (x * self.w, (x * self.v).sum(), x * 2)  # noqa: E731
        net, x = optimize(module(forward, w=normal(3), v=normal(3))), normal(3).requires_grad_()
        y = net(x)
        given = [torch.eye(3, dtype=torch.float64), normal(3)]
        one = grad(y[0], [x, net.w, net.v], given[0], is_grads_batched=True, retain_graph=True, allow_unused=True)
        return one, grad(y[:2], [x, net.w, net.v], given, is_grads_batched=True)

    check(scenario)


def test_gradients_under_vmap(built):
    def scenario(optimize):
        net, x = optimize(mlp()), normal(3).requires_grad_()
        y = net(x)
        product = lambda v: grad(y, x, v, retain_graph=True)[0]  # noqa: E731
        inner, outer = torch.vmap(product, in_dims=1)(normal(2, 5)), torch.vmap(torch.vmap(product))(normal(4, 3, 2))
        return inner, outer

    check(scenario)


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("create_graph", [True, False])
def test_jacobians_and_hessians(vectorize, create_graph):
    def scenario(optimize):
        net, x, options = optimize(mlp()), normal(3), {"vectorize": vectorize, "create_graph": create_graph}
        jacobian = torch.autograd.functional.jacobian(net, x, **options)
        return jacobian, torch.autograd.functional.hessian(lambda x: net(x).sin().sum(), x, **options)

    check(scenario)


def test_transforms_around_the_module():
    def scenario(optimize):
        net, x = optimize(mlp()), normal(3)
        total, weights = lambda x: net(x).sum(), {k: p.detach() * 2 for k, p in net.named_parameters()}
        f = torch.func
        seen = [net(x), f.grad(total)(x), f.vmap(net)(normal(5, 3)), f.jacrev(net)(x), f.jacfwd(net)(x)]
        seen += [f.hessian(total)(x), f.jvp(net, (x,), (x,)), f.functional_call(net, weights, (x,))]
        return [*seen, f.grad(lambda w: f.functional_call(net, w, (x,)).sum())(weights), net(x)]

    check(scenario)


def test_a_tensor_that_a_transform_left_behind():
    def scenario(optimize):
        net, left = optimize(mlp()), []

        def kept(x):
            left.append(x * 2)
            return left[0].sum()

        torch.func.grad(kept)(normal(3))
        with torch.no_grad():
            seen = net(left[0])
        net(left[0]).sum().backward()
        return seen, grads(net)

    check(scenario)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.grad(lambda v: f(v).sum()),
        torch.func.jacrev,
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
        lambda f: torch.func.hessian(lambda v: f(v).sum()),
        lambda f: lambda x: torch.func.vmap(torch.func.grad(lambda v: f(v).sum()))(torch.stack([x, x * 2])),
    ],
)
def test_transforms_inside_of_forward(transform):
    """They run in eager PyTorch, and leave nothing behind for the next module."""

    def scenario(optimize):
        net = optimize(module(lambda self, x: transform(lambda v: v.sin() * self.w)(x) + self.w, w=normal(3)))
        x = normal(3).requires_grad_()
        y = net(x)
        y.pow(2).sum().backward()
        return y, grads(net, x)

    check(scenario, fallback="silent")
    with pytest.raises(Unsupported, match="torch.func that differentiates"):
        scenario(lambda net: optimized_module(net, fallback="raise"))
    check(lambda optimize: optimize(mlp())(normal(2, 3)))
