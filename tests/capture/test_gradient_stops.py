"""What PyTorch detaches stays without gradient in the compiled module."""

from __future__ import annotations

import copy

import torch
from torch import nn

from daceopt import optimized_module
from tests.numerics import assert_within_rounding


class Stopped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            gate = self.linear(x)
        return x.detach() * x + torch.tanh(self.linear(x)) * gate


def _gradients(module, x):
    x = x.clone().requires_grad_()
    module(x).sum().backward()
    return [x.grad, module.linear.weight.grad, module.linear.bias.grad]


def test_detach_and_no_grad():
    torch.manual_seed(0)
    eager, x = Stopped(), torch.randn(3, 4)
    compiled = optimized_module(copy.deepcopy(eager), fallback="raise")
    wide = _gradients(copy.deepcopy(eager).double(), x.double())
    for ours, reference, theirs in zip(_gradients(compiled, x), wide, _gradients(eager, x), strict=True):
        assert_within_rounding(ours, reference, theirs)
