"""The work from a captured graph to the text of its programs grows with the number of layers: calls are counted."""

from __future__ import annotations

import cProfile
from collections import Counter

import torch
from torch import nn

from benchmarks.front_end import capture_graph
from benchmarks.scaling import PHASES, growth, through

_LAYERS = (3, 9)
_SHARE = 0.003  # of all calls: what is called less often may be something that happens once for a large graph


class Layer(nn.Module):
    """A residual layer with a product, a reduction and a chain of element-wise operators."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


def _calls(layers: int) -> dict[str, Counter[str]]:
    """Calls of each function, C's included, by phase."""
    torch._dynamo.reset()
    phases = through(capture_graph(nn.Sequential(*(Layer() for _ in range(layers))), (torch.randn(4, 8),), {}))
    next(phases)
    found = {}
    for phase in PHASES:
        profile = cProfile.Profile()
        profile.runcall(next, phases)
        found[phase] = Counter({str(entry.code): entry.callcount for entry in profile.getstats()})
    return found


def test_no_phase_and_no_function_grows_faster_than_the_layers() -> None:
    _calls(1)  # what is imported, and what is cached for good
    counted = {n: _calls(n) for n in _LAYERS}
    for phase in PHASES:
        large = counted[_LAYERS[-1]][phase]
        assert growth({n: counted[n][phase].total() for n in _LAYERS}) < 1.1, phase
        for function in [f for f, calls in large.items() if calls > _SHARE * large.total()]:
            assert growth({n: counted[n][phase][function] or 1 for n in _LAYERS}) < 1.4, (phase, function)
