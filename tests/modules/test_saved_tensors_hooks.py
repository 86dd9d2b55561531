"""Hooks on saved tensors get tensors, as from eager PyTorch, and gradients are made of what they give back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from daceopt import optimized_module


def _narrowed(t):
    return t.bfloat16() if t.dtype == torch.float32 else t


def _zeroed(t):
    return torch.zeros_like(t) if t.is_floating_point() and t.dim() == 2 and t.shape[0] == 5 else t


HOOKS = {
    "other type": (lambda t: t.double(), lambda t: t.float()),
    "narrowed": (_narrowed, lambda t: t.float() if t.dtype == torch.bfloat16 else t),
    "identity": (lambda t: t, lambda t: t),
    "list": (lambda t: (t.tolist(), t.dtype), lambda kept: torch.tensor(kept[0], dtype=kept[1])),
}


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 2))


def _gradients(net, hooks, rows=5):
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    net.zero_grad()
    with hooks:
        loss = net(x).square().sum()
    loss.backward()
    return [x.grad, *(p.grad.clone() for p in net.parameters())]


@pytest.fixture(scope="module")
def nets():
    return _net(), optimized_module(_net(), fallback="raise", dynamic=True)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_that_change_what_is_saved(nets, name):
    for rows in (5, 8):
        expected, found = (_gradients(net, saved_tensors_hooks(*HOOKS[name]), rows) for net in nets)
        bounds = {"rtol": 0.05, "atol": 0.05} if name == "narrowed" else {}
        torch.testing.assert_close(found, expected, **bounds)


def test_kept_on_the_host(nets):
    torch.testing.assert_close(*(_gradients(net, save_on_cpu()) for net in nets))


def test_what_hooks_make_of_it_counts(nets):
    """Without the activations the weights behind them have no gradient."""
    for net in nets:
        _, _, _, weight, *_ = _gradients(net, saved_tensors_hooks(_zeroed, lambda t: t))
        assert not weight.any()


def test_hooks_see_tensors_which_stay_as_they_are(nets):
    seen = []

    def pack(t):
        seen.append((t, t.clone()))
        return t

    _gradients(nets[1], saved_tensors_hooks(pack, lambda t: t))
    assert seen
    for tensor, before in seen:
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before)


def test_other_shapes_are_refused(nets):
    with pytest.raises(RuntimeError, match="hook on saved tensors gave back a tensor of shape"):
        _gradients(nets[1], saved_tensors_hooks(lambda t: t, lambda t: t[:1]))


def test_regions_computed_again(nets):
    expected, found = [], []
    for net, grads in zip(nets, (expected, found)):
        x = torch.ones(5, 3, requires_grad=True)
        checkpoint(net, x, use_reentrant=False).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(found, expected)
