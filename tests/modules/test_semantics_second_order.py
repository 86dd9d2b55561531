"""Second derivatives of operators in optimized modules: where they saturate, of complex numbers, of attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from daceopt import optimized_module
from tests.twins import assert_same, check, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")

ACTIVATIONS = (
    *(torch.sigmoid, torch.tanh, F.elu, F.selu, F.celu, F.silu, F.mish, F.gelu, F.softplus, F.logsigmoid),
    *(F.softsign, F.hardswish, F.leaky_relu, F.tanhshrink, torch.sgn, lambda x: F.gelu(x, approximate="tanh")),
)


def test_second_order_of_activations_where_they_saturate_and_at_zero():
    def scenario(optimize):
        net = optimize(module(lambda self, x: [f(x) for f in ACTIVATIONS]))
        x = torch.tensor([-1e4, -800.0, -1.0, -0.0, 0.0, 1.0, 800.0, 1e4], dtype=torch.float64).requires_grad_()
        (g,) = grad(sum(y.sum() * k for k, y in enumerate(net(x), 1)), x, create_graph=True)
        return g.detach(), grad(g.sum(), x)

    check(scenario)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x, y: x @ y,
        lambda self, x, y: torch.linalg.inv(x) * 2j + y.conj(),
        lambda self, x, y: (3j / x + y * (1 - 2j)).exp().abs(),
    ],
)
def test_second_order_of_complex_numbers(forward):
    def scenario(optimize):
        net = optimize(module(forward))
        x, y = (torch.complex(normal(3, 3) + k, normal(3, 3).t() * 0.5).requires_grad_() for k in (1, 2))
        loss = net(x, y).abs().pow(2).sum()
        gradients = grad(loss, (x, y), create_graph=True)
        sum((g.real**2 + g.imag).sum() for g in gradients).backward()
        return [torch.view_as_real(t.resolve_conj()).contiguous() for t in (*gradients, x.grad, y.grad)]

    check(scenario)


def _one_by_one(net, x, h):
    y = net(x, h).sum()
    return [*grad(y, [x], create_graph=True), *grad(y, [h], create_graph=True)]


ASKED = {
    "a leaf": lambda net, x, h: [*grad(net(x, h).sum(), [x], create_graph=True)],
    "what comes of one": lambda net, x, h: [*grad(net(x * 2, h).sum(), [x], create_graph=True)],
    "two": lambda net, x, h: [*grad(net(x, h).sum(), [net.w, h], create_graph=True)],
    "one not connected": lambda net, x, h: [*grad(net(x, h).sum(), [net.u, x], None, None, True, allow_unused=True)],
    "backward by one": lambda net, x, h: [net(x, h).sum().backward(inputs=[x], create_graph=True), x.grad],
    "one by one": _one_by_one,
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("is_hooked", [False, True])
def test_gradients_that_nobody_asks_for(name, is_hooked):
    def scenario(optimize):
        net = optimize(module(lambda self, x, h: torch.tanh(x @ self.w) * h.sin(), w=normal(3, 3), u=normal(3)))
        x, h, seen = normal(3, 3).requires_grad_(), normal(1, 3).requires_grad_(), []
        inner = h * 1
        inner.retain_grad()
        if is_hooked:
            inner.register_hook(lambda g: seen.append(g.detach()))
        found = ASKED[name](net, x, inner)
        sum(g.square().sum() for g in found if g is not None).backward()
        return found[-1].detach(), net.w.grad, net.u.grad, x.grad, h.grad, inner.grad, seen

    check(scenario)


def test_only_gradients_that_are_asked_for_are_computed():
    net = optimized_module(module(lambda self, x: torch.tanh(x @ self.w) @ self.u, w=normal(3, 3), u=normal(3, 2)))
    x = normal(2, 3).requires_grad_()
    grad(net(x).sum(), [x], create_graph=True)
    (asked,) = net.forward.dispatcher.graphs[0]._higher_graphs.values()
    assert len(asked.traced.results) == 1


@pytest.mark.parametrize("is_causal", [False, True])
def test_second_order_of_attention(is_causal):
    """Eager PyTorch has it only of the mathematical form; its first gradients are those of any form."""

    def attention(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def gradients(form, net):
        inputs = [normal(2, 2, 3, 4).roll(k, -1).requires_grad_() for k in range(3)]
        with sdpa_kernel(form):
            found = grad(net(*inputs).pow(3).sum(), inputs, create_graph=True)
            return *found, *grad(sum(g.pow(2).sum() for g in found), inputs)

    net = module(attention)
    expected = gradients(SDPBackend.MATH, net)
    found = gradients(SDPBackend.FLASH_ATTENTION, optimized_module(net, fallback="raise"))
    assert_same([t.detach().contiguous() for t in found], [t.detach().contiguous() for t in expected])


NORMALIZATIONS = {
    "layer": lambda x, w, b: F.layer_norm(x, (4,), w, b),
    "rms": lambda x, w, b: F.rms_norm(x, (4,), w) + b,
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    "instance": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
}


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_second_order_of_normalizations(name):
    """Their statistics, which the first backward reads from memory, depend on the input as well."""

    def scenario(optimize):
        net = optimize(module(lambda self, x, w, b: NORMALIZATIONS[name](x, w, b).sin()))
        operands = [normal(3, 4, 4), normal(4), normal(4)]
        for t in operands:
            t.requires_grad_()
        first = grad((net(*operands) * normal(3, 4, 4)).sum(), operands, create_graph=True)
        return [g.detach() for g in first], grad(sum((g * g.detach().cos()).sum() for g in first), operands)

    check(scenario)


def _composed(x, axes, w, b, shape):
    centred = x - x.mean(axes, keepdim=True)
    scaled = centred * (centred.square().mean(axes, keepdim=True) + 1e-5).rsqrt()
    return scaled * w.view(shape) + b.view(shape)


COMPOSED = {
    "layer": lambda x, w, b: _composed(x, (2,), w, b, (4,)),
    "batch": lambda x, w, b: _composed(x, (0, 2), w, b, (4, 1)),
    "moving": lambda x, w, b: _composed(x, (0, 2), w, b, (4, 1)),
    "instance": lambda x, w, b: _composed(x, (2,), w, b, (4, 1)),
}
MOVING = {"moving": lambda x, w, b: F.batch_norm(x, x.new_zeros(4), x.new_ones(4), w, b, training=True)}


@pytest.mark.parametrize("name", COMPOSED)
def test_third_order_of_normalizations(name):
    """Eager PyTorch's third derivatives take the statistics for constants: those of the formula in parts are right."""

    def derivatives(net):
        operands = [normal(3, 4, 4).requires_grad_(), normal(4).requires_grad_(), normal(4).requires_grad_()]
        value, found = (net(*operands) * normal(3, 4, 4)).sin().sum(), []
        for _ in range(3):
            first = grad(value, operands, create_graph=True)
            value = sum(g.square().sum() for g in first)
            found += [g.detach().contiguous() for g in first]
        return found

    fused = (NORMALIZATIONS | MOVING)[name]
    net = optimized_module(module(lambda self, x, w, b: fused(x, w, b)), fallback="raise")
    assert_same(derivatives(net), derivatives(COMPOSED[name]))


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"label_smoothing": 0.1}, {"ignore_index": 1}])
def test_second_order_of_cross_entropy(options):
    labels = torch.tensor([0, 2, 1, 3, 0])

    def scenario(optimize):
        net, x = optimize(module(lambda self, x: F.cross_entropy(x, labels, **options))), normal(5, 4).requires_grad_()
        (g,) = grad(net(x), x, create_graph=True)
        return g.detach(), grad((g * g.detach().cos()).sum(), x)

    check(scenario)


@pytest.mark.parametrize("axis", [0, -1])
def test_second_order_of_places_filled_with_a_tensor(axis):
    """The value counts once where the index names a place twice."""

    def scenario(optimize):
        net = optimize(module(lambda self, x, v: x.index_fill(axis, torch.tensor([0, 2, 2]), v * v) * x))
        operands = normal(4, 3).requires_grad_(), normal().requires_grad_()
        first = grad(net(*operands).sum(), operands, create_graph=True)
        return [g.detach() for g in first], grad(sum(g.square().sum() for g in first), operands)

    check(scenario)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_second_order_of_recurrent_layers_that_train(layer):
    """They take a share to drop, zero here, and draw nothing."""

    def scenario(optimize):
        torch.manual_seed(0)
        net, x = optimize(layer(4, 3, batch_first=True).double()), normal(2, 3, 4).requires_grad_()
        (first,) = grad(net(x)[0].square().sum(), x, create_graph=True)
        first.square().sum().backward()
        return [first.detach(), x.grad, *(p.grad for p in net.parameters())]

    check(scenario)
