"""Gradients by results from which other results are computed are those of eager PyTorch, whoever asks for them."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from daceopt import optimized_module
from tests.twins import assert_same, check, grads, module, normal

pytestmark = pytest.mark.usefixtures("interpreted")


def grad(*args, **kwargs):
    """Gradients in rows: how they stand in memory is not promised."""
    return [g if g is None else g.contiguous() for g in torch.autograd.grad(*args, **kwargs)]


class ForceField(nn.Module):
    """An energy and its gradient by positions that forward computes, behind a break of the graph."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        self.q = nn.Parameter(torch.ones(3))

    def forward(self, fractional, lattice):
        position = fractional @ lattice
        distance = (position[:, None] - position[None] + 1e-3).norm(dim=-1)
        count = int((distance < 3).sum().item())
        energy = self.net(distance.reshape(-1, 1)).sum() / count + (position * self.q).square().sum()
        return energy, -torch.autograd.grad(energy, position, create_graph=True)[0]


def _chain(self, x):
    """Three results, each computed from those before it, and one apart."""
    a = (x * self.w).sin()
    b = (a * a).exp() + x
    return a, b, (a * b * self.v).sum(0), x.cos() * self.w


def _views(self, x):
    a = (x * self.w).sin()
    first, second = a.t().chunk(2, 1)
    return first, second.exp(), (first * second).sum(), a


def _of_arguments(self, x):
    part = x[1:]
    return part, x.t(), (part * self.w).exp().sum(0) + (x.t().cos() @ x).sum(0)


def _in_containers(self, x):
    h = (x * self.w).sin()
    return {"h": h, "rest": (h.exp(), [h * self.v, h.t()])}


def _written(self, x):
    h = (x * self.w).sin()
    y = h * 3
    h.mul_(2)
    part = h[0]
    part.add_(1)
    return h, part, y, h.exp() * part


def _partly_without(self, x):
    h = (x * self.w).sin()
    with torch.no_grad():
        scale = h.exp()
    return h, h.detach() * self.v, h * scale, h.floor() * self.v


FORWARDS = [_chain, _views, _of_arguments, _in_containers, _written, _partly_without]


def _run(forward, optimize):
    net, x = optimize(module(forward, w=normal(3), v=normal(3) + 2)), normal(2, 3).requires_grad_()
    results = torch.utils._pytree.tree_leaves(net(x * 1.5))
    return net, x, [r for r in results if r.requires_grad]


def _grads(net, *inputs):
    return [g if g is None else g.contiguous() for g in grads(net, *inputs)]


def _tripled(seen, g):
    seen.append(g.contiguous())
    return g * 3


def _loss(results):
    return sum((r * torch.arange(1.0, r.numel() + 1).reshape(r.shape).double()).pow(2).sum() for r in results)


@pytest.mark.parametrize("forward", FORWARDS)
def test_each_result_by_each_other(forward):
    def scenario(optimize):
        net, x, results = _run(forward, optimize)
        return [
            [grad(_loss([y]), [h, net.w, x], retain_graph=True, allow_unused=True) for h in results] for y in results
        ] + [[grad(_loss([y]), h, retain_graph=True, allow_unused=True) for h in results] for y in results]

    check(scenario)


@pytest.mark.parametrize("forward", FORWARDS[:-1])
def test_gradients_of_gradients(forward):
    def scenario(optimize):
        net, x, results = _run(forward, optimize)
        seen = []
        for h in results:
            g = grad(_loss(results), h, create_graph=True)[0]
            second = grad(g.pow(2).sum(), [h, net.w, net.v, x], allow_unused=True, create_graph=True)
            seen.append((g, second))
        total = grad(_loss(results), [net.w, net.v], create_graph=True)
        return seen, total, grad(total[0].sum(), [results[0], net.w], allow_unused=True)

    check(scenario)


@pytest.mark.parametrize("forward", FORWARDS)
def test_hooks_and_retained_gradients(forward):
    def scenario(optimize):
        seen = []
        for observed in range(4):
            net, x, results = _run(forward, optimize)
            h = results[min(observed, len(results) - 1)]
            h.retain_grad()
            h.register_hook(partial(_tripled, seen))
            results[0].register_hook(lambda g: g.clamp(-1, 1))
            results[0].register_hook(lambda g: g + 1)
            _loss(results).backward()
            seen += [h.grad.contiguous(), *_grads(net, x)]
        return seen

    check(scenario)


@pytest.mark.parametrize("forward", FORWARDS)
def test_nobody_looks(forward):
    def scenario(optimize):
        net, x, results = _run(forward, optimize)
        _loss(results).backward(retain_graph=True)
        first = [g if g is None else g.clone() for g in _grads(net, x)]
        _loss(results[1:]).backward(inputs=[net.w, x], retain_graph=True)
        return first, _grads(net, x), grad(_loss(results), list(net.parameters()))

    check(scenario)


def test_no_program_is_made_for_those_who_do_not_look():
    net, _, results = _run(_chain, lambda m: optimized_module(m, fallback="raise"))
    grad(_loss(results), list(net.parameters()), retain_graph=True)
    net.zero_grad()
    _loss(results).backward(retain_graph=True)
    (graph,) = net.daceopt._dispatcher.graphs
    assert not graph._segments
    grad(_loss(results), results[0])
    assert graph._segments


def test_forces():
    def scenario(optimize):
        torch.manual_seed(0)
        net, seen = optimize(ForceField().double()), []
        for n in (5, 4):
            lattice = (torch.eye(3) * 2).double().requires_grad_()
            energy, forces = net(normal(n, 3), lattice)
            (energy + forces.pow(2).sum()).backward()
            seen += [energy, forces]
        return seen, grads(net, lattice)

    check(scenario, fallback="silent")


def test_features_that_a_hook_keeps():
    def scenario(optimize):
        net, kept = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())).double(), []
        for layer in (net[0], net[2], net[2][0]):
            layer.register_forward_hook(lambda m, a, r: kept.append(r))
        y = optimize(net)(normal(2, 3))
        return [grad(y[:, 1].sum(), h, retain_graph=True) for h in kept], grad(y.sum(), [*kept, *net.parameters()])

    check(scenario)


def test_an_argument_that_is_changed_is_a_result():
    def forward(self, x):
        x.mul_(self.w)
        return x.sin(), x[0]

    def scenario(optimize):
        net, leaf = optimize(module(forward, w=normal(3))), normal(2, 3).requires_grad_()
        x = leaf * 2
        y, part = net(x)
        return [grad(y.sum(), t, retain_graph=True, allow_unused=True) for t in (x, part, leaf, net.w)], grads(net)

    check(scenario)


def test_random_numbers_are_those_of_the_call():
    def forward(self, x):
        h = nn.functional.dropout(x * self.w, 0.5)
        return h, nn.functional.dropout(h * self.w, 0.5)

    net = optimized_module(module(forward, w=torch.ones(40, dtype=torch.float64)), fallback="raise")
    x = torch.ones(40, dtype=torch.float64).requires_grad_()
    h, y = net(x)
    assert 0 < int((y == 4).sum()) < 20
    for _ in range(2):
        (by,) = grad(y.sum(), h, retain_graph=True)
        assert torch.equal(by * h, y)
    by, at = grad(y.sum(), [h, x])
    assert torch.equal(by * h, y) and torch.equal(at, y)


def test_autocast():
    def forward(self, x):
        h = x @ self.w
        return h, (h @ self.w).softmax(-1)

    def scenario(optimize):
        net, x = optimize(module(forward, w=normal(3, 3).float())), normal(2, 3).float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h, y = net(x)
            first = grad(y[:, 1].float().sum(), h, retain_graph=True)
        return h, y, first, grad(y[:, 0].float().sum(), h)

    check(scenario)


def test_two_calls_before_their_backwards():
    def scenario(optimize):
        net, x, first = _run(_chain, optimize)
        second = net(x * 3)
        return [grad(_loss(r[1:]), [r[0], r[1], x]) for r in (second, first)]

    check(scenario)


def test_many_gradients_at_once():
    def scenario(optimize):
        net, x, (a, b, *_) = _run(_chain, optimize)
        many = normal(4, 2, 3)
        seen = grad(b, a, many, is_grads_batched=True, retain_graph=True)
        return seen, grad(b, [a, x, net.w], many, is_grads_batched=True)

    check(scenario)


def test_regions_that_are_computed_again():
    def scenario(optimize):
        net, x = optimize(module(_chain, w=normal(3), v=normal(3))), normal(2, 3).requires_grad_()
        a, b, c, _ = checkpoint(net, x, use_reentrant=False)
        a.retain_grad()
        (b.sum() * c.sum()).backward()
        return a.grad, grads(net, x)

    check(scenario)


def test_sizes_that_change():
    def scenario(optimize):
        net, seen = optimize(module(_chain, w=normal(3), v=normal(3))), []
        for n in (2, 5, 7, 3):
            a, b, c, _ = net(normal(n, 3))
            seen += [grad(b.sum() + c.sum(), a, create_graph=True), grad(c.sum(), [a, b])]
        return seen

    check(scenario, dynamic=True)


def test_threads_that_share_a_graph():
    net, x, results = _run(_chain, lambda m: optimized_module(m, fallback="raise"))
    expected, found = grad(_loss(results), [results[0], net.w, x], retain_graph=True), []

    def run():
        found.append(grad(_loss(results), [results[0], net.w, x], retain_graph=True))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4
    for each in found:
        assert_same(each, expected)


def test_nothing_outlives_its_graph():
    _, x, results = _run(_chain, lambda m: optimized_module(m, fallback="raise"))
    grad(_loss(results), [results[0], x], retain_graph=True)
    refs = [weakref.ref(r) for r in results]
    del results
    gc.collect()
    assert not any(r() is not None for r in refs)


def test_what_was_changed_since_is_refused():
    _, x, (a, b, *_) = _run(_chain, lambda m: optimized_module(m, fallback="raise"))
    seen = a * 1
    with torch.no_grad():
        a.mul_(2)
    b.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(b.sum() + seen.sum(), [a, x])


def _fixed_point(f, z):
    for _ in range(4):
        z = f(z)
    return z


class Equilibrium(nn.Module):
    """A fixed point, whose gradient is one, too: its hook differentiates."""

    def __init__(self):
        super().__init__()
        self.first, self.cell = nn.Linear(3, 3), nn.Linear(3, 3)

    def step(self, z, x):
        return torch.tanh(0.3 * self.cell(z) + x)

    def forward(self, x):
        x = self.first(x)
        with torch.no_grad():
            z = _fixed_point(lambda z: self.step(z, x), torch.zeros_like(x))
        z = self.step(z.detach(), x)
        z0 = z.clone().detach().requires_grad_()
        f0 = self.step(z0, x)
        z.register_hook(lambda g: _fixed_point(lambda h: grad(f0, z0, h, retain_graph=True)[0] + g, g))
        return z


def test_a_hook_that_differentiates():
    def scenario(optimize):
        torch.manual_seed(0)
        net, seen = optimize(Equilibrium().double()), []
        for _ in range(2):
            x = normal(2, 3).requires_grad_()
            z = net(x)
            z.square().sum().backward()
            seen += [z, x.grad]
        return seen, grads(net)

    check(scenario, fallback="silent")
