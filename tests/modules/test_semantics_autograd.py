"""What autograd makes of an optimized module is what it makes of the module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

from daceopt import optimized_module
from daceopt.errors import Unsupported
from tests.twins import assert_same, check, grads, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")
INF, NAN = float("inf"), float("nan")


def _loss_and_logits(logits):
    return (logits * logits).mean(), logits


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2 * ctx.k, None


class Exponential(torch.autograd.Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Several(torch.autograd.Function):
    """Results with and without a gradient, a saved intermediate, arguments that are no tensors."""

    @staticmethod
    def forward(ctx, a, b, flag, n):
        ctx.flag, larger, e = flag, a > b, (a * b).exp()
        ctx.mark_non_differentiable(larger)
        ctx.save_for_backward(a, e)
        return e, larger, a.argmax(), a - b * n

    @staticmethod
    def backward(ctx, g, _larger, _place, h):
        a, e = ctx.saved_tensors
        ga = g * e * 7 + h if ctx.needs_input_grad[0] else None
        return ga, g * e * a * 5 - h if ctx.flag else g * 11, None, None


def test_hooks_of_a_result_that_has_no_gradient():
    """One node stands for the results; in eager PyTorch that of the others is not reached."""

    def scenario(optimize):
        net, seen = optimize(module(lambda self, x: (x * 3, x.tanh(), x.tanh() * 2))), []
        for which in range(3):
            x = normal(4).requires_grad_()
            results = net(x)
            handles = [r.register_hook(lambda g, k=k: seen.append((k, g.sum()))) for k, r in enumerate(results)]
            results[0].register_hook(lambda g: g.flip(0) * 2)
            handles[1].remove()
            results[which].square().sum().backward()
            seen.append(x.grad)
        return seen

    check(scenario)


class Scan(torch.autograd.Function):
    """``y[k] = a[k] * y[k - 1] + x[k]``, written into parts of copies in both directions."""

    @staticmethod
    def forward(ctx, a, x):
        y = x.clone()
        for k in range(1, x.shape[1]):
            y[:, k].add_(a[:, k].mul(y[:, k - 1]))
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        (a, y), g = ctx.saved_tensors, g.clone()
        for k in range(y.shape[1] - 1, 0, -1):
            g[:, k - 1].add_(a[:, k].mul(g[:, k]))
        of_a = torch.zeros_like(a)
        of_a[:, 1:].add_(y[:, :-1] * g[:, 1:])
        return of_a, g


class FirstOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * b

    @staticmethod
    def backward(ctx, g):
        return g, None


def test_a_custom_function_that_writes_into_parts():
    def scenario(optimize):
        net = optimize(module(lambda self, x: Scan.apply((x * self.w).sin(), x.cos()), w=normal(4)))
        x = normal(2, 4).requires_grad_()
        net(x).square().sum().backward()
        return grads(net, x)

    check(scenario)


# -------------------------------------------------------------------- gradients of gradients


def test_gradient_penalty(built):
    def scenario(optimize):
        net, x = optimize(mlp()), normal(5, 3).requires_grad_()
        (g,) = grad(net(x).sum(), x, create_graph=True)
        ((g.norm(dim=1) - 1) ** 2).mean().backward()
        return g, grads(net, x)

    check(scenario)


def test_third_order():
    def scenario(optimize):
        net, x = optimize(mlp()), normal(5, 3).requires_grad_()
        y = net(x).pow(2).sum()
        for _ in range(3):
            (g,) = grad(y, x, create_graph=True)
            y = g.pow(2).sum()
        y.backward()
        return g, grads(net, x)

    check(scenario)


@pytest.mark.parametrize("function", [lambda x: Cube.apply(x, 2.0).sin(), lambda x: Exponential.apply(x).sin()])
def test_higher_orders_through_a_custom_function(function):
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: function(x * self.w), w=normal(3))), normal(2, 3).requires_grad_()
        (g,) = grad(net(x).sum(), x, create_graph=True)
        (h,) = grad(g.pow(2).sum(), x, create_graph=True)
        h.sum().backward()
        return g, h, grads(net, x)

    check(scenario)


def test_second_order_with_dynamic_sizes():
    def scenario(optimize):
        net, seen = optimize(mlp()), []
        for n in (5, 3, 7):
            x = normal(n, 3).requires_grad_()
            (g,) = grad(net(x).sum(), x, create_graph=True)
            g.pow(2).sum().backward()
            seen.append((g, x.grad))
        return seen, grads(net)

    check(scenario, dynamic=True)


def test_second_order_leaves_what_it_does_not_depend_on():
    def scenario(optimize):
        net, x = optimize(nn.Linear(3, 2).double()), normal(5, 3).requires_grad_()
        (g,) = grad(net(x).sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        return g, grads(net, x)

    check(scenario)


def test_second_order_through_copies():
    def copied(self, x):
        y = torch.zeros(2, 3, dtype=x.dtype)
        y.copy_(x[0].pow(3) * self.w)
        y[0] *= x[1]
        return y.sin()

    def scenario(optimize):
        net, x = optimize(module(copied, w=normal(3))), normal(2, 3).requires_grad_()
        (g,) = grad(net(x).sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        return g, x.grad, grads(net)

    check(scenario)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: torch.linalg.solve(a, a[:, :2].sin()),
        torch.linalg.inv,
        torch.linalg.det,
        torch.logdet,
        torch.linalg.cholesky,
        lambda a: torch.cumprod(a - a[0, 0], 1),
        lambda a: torch.prod(a - a[0, 0], 1),
    ],
    ids=["solve", "inv", "det", "logdet", "cholesky", "cumprod", "prod"],
)
def test_second_order_of_formulas_for_one_derivative_only(function):
    """PyTorch differentiates these by other formulas where the gradient is differentiated in its turn."""

    def scenario(optimize):
        net, x = optimize(module(lambda self, x: function(x @ x.T + self.w), w=torch.eye(3).double())), normal(3, 3)
        (g,) = grad(net(x.requires_grad_()).pow(2).sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        return g, grads(net, x)

    check(scenario)


def test_second_order_through_normalizations():
    def scenario(optimize):
        layers = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.LayerNorm(12), nn.Softmax(1))
        net, x = optimize(layers.double()), normal(4, 2, 5).requires_grad_()
        (g,) = grad(net(x).pow(2).sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        return g, grads(net, x), dict(net.named_buffers())

    check(scenario)


def test_second_order_of_a_call_that_changes_buffers():
    """It reads them as they were before the call."""

    def averaged(self, x):
        y = x * x * self.mean.clone() * self.w
        self.mean.lerp_(x.detach(), 0.5)
        return y

    def scenario(optimize):
        net = module(averaged, w=normal(3))
        net.register_buffer("mean", normal(3) + 1)
        normed = torch.nn.utils.spectral_norm(nn.Linear(3, 3).double())
        seen = []
        for model in (net, nn.Sequential(normed, nn.Tanh(), nn.BatchNorm1d(3).double())):
            optimize(model)
            x = normal(3).requires_grad_() if model is net else normal(5, 3).requires_grad_()
            y = model(x)
            model(x.detach() * 2)
            (g,) = grad(y.pow(2).sum(), x, create_graph=True)
            g.pow(2).sum().backward()
            seen.append((g, grads(model, x), dict(model.named_buffers())))
        return seen

    check(scenario)


def test_second_order_refuses_what_was_changed_since():
    """Arguments without a gradient as well; those that nothing is computed from may change."""
    net = optimized_module(module(lambda self, x, z, n: x * x * z.tanh() + n.sign(), w=normal(3)), fallback="raise")
    x, z, n = normal(3).requires_grad_(), normal(3), normal(3)
    y = net(x, z, n)
    n.add_(1)
    (g,) = grad(y.sum(), x, create_graph=True, retain_graph=True)
    assert_same(g, 2 * x * z.tanh())
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: z,"):
        grad(y.sum(), x, create_graph=True, retain_graph=True)


def test_dropout_in_second_order():
    """That of the evaluated layer is the identity; one that draws is refused, with its name."""
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh()).double(), normal(5, 3).requires_grad_()

    def scenario(optimize):
        optimize(net).eval()
        (g,) = grad(net(x).sum(), x, create_graph=True)
        return g, grad(g.pow(2).sum(), x)

    check(scenario)
    with pytest.raises(Unsupported, match="dropout"):
        grad(net.train()(x).sum(), x, create_graph=True)


# -------------------------------------------------------------------- custom functions


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_several_results_and_arguments(flag, first):
    def scenario(optimize):
        net = optimize(module(lambda self, a, b: Several.apply(a, b, flag, 3)))
        a, b = normal(2, 3).requires_grad_(first), (normal(2, 3) + 1).requires_grad_()
        y = net(a, b)
        (y[0].sum() + y[3].pow(2).sum()).backward()
        return y, a.grad, b.grad

    check(scenario)


def test_no_gradient_from_a_custom_function_is_none():
    def scenario(optimize):
        net = optimize(module(lambda self, a, b: FirstOnly.apply(a * self.w, b * self.v), w=normal(3), v=normal(3)))
        a, b = normal(3).requires_grad_(), normal(3).requires_grad_()
        net(a, b).sum().backward()
        return grads(net, a, b)

    check(scenario)


# -------------------------------------------------------------------- absent gradients


def test_gradient_of_one_of_two_results():
    def scenario(optimize):
        net = optimize(module(lambda self, x: (x * self.w, x * self.v), w=normal(3), v=normal(3)))
        net(normal(2, 3))[0].sum().backward()
        return grads(net)

    check(scenario)


def test_an_unused_gradient_is_refused_as_in_eager():
    def scenario(optimize):
        net = optimize(module(lambda self, x: (x * self.w, x * self.v), w=normal(3), v=normal(3)))
        return grad(net(normal(2, 3))[0].sum(), [net.w, net.v])

    check(scenario)


def test_connected_gradients_are_zero():
    def scenario(optimize):
        def forward(self, x):
            return (x.floor() * self.w.round()).sum() + torch.where(x > 1e9, self.v, 0.0).sum()

        net, x = optimize(module(forward, w=normal(3), v=normal(3), unused=normal(3))), normal(2, 3).requires_grad_()
        net(x).backward()
        return grads(net, x)

    check(scenario)


def test_an_absent_gradient_does_not_meet_an_infinite_derivative():
    def scenario(optimize):
        net = optimize(module(lambda self, x: ((x * self.w).sum(), (x * x).sum().sqrt()), w=normal(3)))
        x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        net(x)[0].backward()
        return grads(net, x)

    check(scenario)


def test_a_loss_beside_what_it_is_computed_from():
    def scenario(optimize):
        net = optimize(module(lambda self, x: _loss_and_logits((x * self.w).sqrt()), w=normal(3)))
        x = normal(2, 3).abs().double().requires_grad_()
        net(x)[0].backward()
        return grads(net, x)

    check(scenario)


@pytest.mark.parametrize("use", [torch.zeros_like, torch.Tensor.detach, lambda y: y.new_ones(3), lambda y: y > 2])
def test_an_absent_gradient_with_an_infinite_derivative_beside_a_loss_that_does_not_differentiate_it(use):
    def scenario(optimize):
        def forward(self, x):
            y = (x * x).sum(0).sqrt()
            return (use(y) * self.w + x).sum(), y

        net, x = optimize(module(forward, w=normal(3))), torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        net(x)[0].backward()
        return grads(net, x)

    check(scenario)


def test_an_absent_gradient_with_an_infinite_derivative_of_what_is_written_behind_the_loss():
    def scenario(optimize):
        def forward(self, x):
            y = x * self.w
            loss = (y * 2).sum()
            y.add_((x * x).sum().sqrt())
            return loss, y

        net, x = optimize(module(forward, w=normal(3))), torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        net(x)[0].backward()
        return grads(net, x)

    check(scenario)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("numbers", [[2, 3, INF, 5], [2, 0, INF, 5], [0, 0, NAN, 1], [INF, 0, 2, 0]])
@pytest.mark.parametrize("which", [0, 1])
def test_gradients_beside_an_absent_one_are_those_of_the_first_order(numbers, which):
    """PyTorch's gradient of a running product is another computation where it may be differentiated again."""

    def scenario(optimize):
        net, x = optimize(module(lambda self, x: (x.cumprod(0), x.sin()))), torch.tensor(numbers).double()
        net(x.requires_grad_())[which].sum().backward()
        return x.grad

    check(scenario)


def test_a_derivative_of_zero_beside_an_absent_gradient_with_an_infinite_derivative():
    def scenario(optimize):
        net, x = optimize(module(lambda self, x: (x.log(), x.floor()))), torch.zeros(3).double().requires_grad_()
        net(x)[1].sum().backward()
        return grads(net, x)

    check(scenario)


def test_an_absent_gradient_with_an_infinite_derivative_and_random_numbers():
    """The call is made again with its seed, and changes no buffer."""
    net = optimized_module(module(_dropped, count=torch.zeros((), dtype=torch.int64)), fallback="raise")
    x = torch.ones(200, dtype=torch.float64).requires_grad_()
    y, _ = net(x)
    state = torch.random.get_rng_state()
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()) and len(y.unique()) == 2
    assert net.count == 1 and torch.equal(torch.random.get_rng_state(), state)


def _dropped(self, x):
    self.count += 1
    return nn.functional.dropout(x, 0.5), (x - 1).sqrt()


# -------------------------------------------------------------------- regions, hooks, checkpoints


def test_regions_without_gradients():
    def scenario(optimize):
        def forward(self, x):
            a = x * self.w
            with torch.no_grad():
                b = x * self.w
                with torch.enable_grad():
                    c = x * self.v
            with torch.set_grad_enabled(False):
                d = a * 2
            return a + b + c + d, b, c, d, a.detach()

        net, x = optimize(module(forward, w=normal(3), v=normal(3))), normal(2, 3).requires_grad_()
        y = net(x)
        (y[0] ** 2).sum().backward()
        with torch.no_grad():
            z = net(x)
        with torch.inference_mode():
            net(x)
        return y, z, grads(net, x)

    check(scenario)


def test_a_parameter_changed_without_gradients():
    def scenario(optimize):
        def forward(self, x):
            with torch.no_grad():
                self.w.clamp_(-0.5, 0.5)
            return x * self.w

        net = optimize(module(forward, w=normal(3)))
        net(normal(2, 3)).pow(2).sum().backward()
        return net.w, grads(net)

    check(scenario, fallback="silent")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_draws_the_same_again(built, reentrant):
    net, x = optimized_module(nn.Dropout(0.5), fallback="raise"), torch.ones(64, requires_grad=True)
    y = checkpoint(net, x, use_reentrant=reentrant)
    y.sum().backward()
    assert 8 < int((y > 0).sum()) < 56
    torch.testing.assert_close(x.grad, y.detach(), rtol=0, atol=0)


def test_hooks_of_children_that_come_and_go():
    def scenario(optimize):
        net, x, seen = optimize(mlp()), normal(2, 3), []
        net(x)
        hook = net[1].register_forward_hook(lambda module, arguments, result: seen.append(result))
        y = net(x)
        (seen[0].pow(2).sum() + y.sum()).backward()
        hook.remove()
        return y, net(x), seen, grads(net)

    check(scenario, fallback="silent")


def test_hooks_of_all_modules():
    def scenario(optimize):
        net, x, seen = optimize(mlp()), normal(2, 3), []
        net(x)
        hook = nn.modules.module.register_module_forward_hook(lambda m, a, r: seen.append(type(m).__name__))
        try:
            net(x)
        finally:
            hook.remove()
        return seen

    check(scenario, fallback="silent")


def test_gradients_computed_in_forward():
    """The graph breaks there; our own backward is no code for Dynamo."""

    def scenario(optimize):
        def forward(self, x):
            with torch.enable_grad():
                x.requires_grad_()
                energy = (x * self.w).sin().sum()
                (g,) = grad(energy, x, create_graph=True)
            return energy, -g

        net, x = optimize(module(forward, w=normal(3))), normal(2, 3)
        energy, force = net(x)
        force.pow(2).sum().backward()
        return energy, force, grads(net)

    check(scenario, fallback="silent")


def test_rows_chosen_by_a_mask_are_normalized():
    """The derivative of the write by PyTorch's formula needs the number of rows: the graph is left to eager PyTorch."""

    def forward(self, x, mask):
        y = torch.zeros_like(x)
        y[mask] = self.norm(x[mask])
        return y

    def scenario(optimize):
        net, x = optimize(module(forward, norm=nn.BatchNorm1d(3).double())), normal(4, 3).requires_grad_()
        net(x, torch.tensor([True, True, False, True])).square().sum().backward()
        return grads(net, x)

    check(scenario, fallback="silent")


class _Straight(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class _FirstAlone(torch.autograd.Function):
    """A sum, whose second operand gets no gradient."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, grad):
        return grad * 3, None


def test_a_custom_function_gets_zeros_for_an_absent_gradient():
    """What is behind it has a gradient of zeros; what is not has none."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            second = nn.functional.linear(x, _Straight.apply(self.second.weight * 3)) * 2 + self.second.bias
            return _FirstAlone.apply(self.first(x), second).tanh()

    theirs = Net()
    ours = optimized_module(copy.deepcopy(theirs), recipe="cpu", fallback="raise")
    x = torch.randn(3, 4)
    for net in (theirs, ours):
        net(x).sum().backward()
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (mine.grad is None) == (wanted.grad is None)
        if wanted.grad is not None:
            torch.testing.assert_close(mine.grad, wanted.grad)
    assert theirs.second.bias.grad is None and not theirs.second.weight.grad.any()
