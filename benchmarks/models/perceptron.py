"""The deep part of recommenders: linear layers with rectifiers between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """(batch, sizes[0]) -> (batch, sizes[-1]), a rectifier after each layer but the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
