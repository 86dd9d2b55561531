"""A first call: forward and backward of a module, beside eager PyTorch. ``make test-wheel`` runs it, installed anew."""

import copy

import torch
from torch import nn

from daceopt import optimized_module

model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10), nn.LogSoftmax(dim=-1))
optimized = optimized_module(copy.deepcopy(model), fallback="raise", recipe="cpu")
x = torch.randn(4, 3, 32, 32)
for net in (model, optimized):
    net(x)[:, 0].sum().backward()
for ours, theirs in zip(optimized.parameters(), model.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad)
print(optimized.daceopt)
