"""A module in eval mode as one program of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from daceopt import recipes
from daceopt.errors import CaptureError, Unsupported
from daceopt.modules.frozen import freeze
from tests.numerics import assert_within_rounding
from tests.twins import module


def _results(net: nn.Module, *args: Any, **kwargs: Any) -> list[np.ndarray]:
    """Of the compiled program, after it was compared with PyTorch."""
    torch.manual_seed(0)
    frozen = freeze("net", net, args, kwargs)
    found = frozen.compile(recipes.get("cpu"))(*frozen.feeds)
    for ours, theirs, exact in zip(found, frozen.eager(), frozen.exact(), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert_within_rounding(ours, exact)
    return found


def test_results_are_whole_arrays_in_the_call_s_order() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        h = torch.tanh(x @ self.w)
        return {"turned": h.T, "rest": (x, h.argmax(-1), h[1:], 7, h.T)}

    found = _results(module(forward, w=torch.randn(5, 4)), torch.randn(3, 5))
    assert [f.shape for f in found] == [(4, 3), (3, 5), (3,), (2, 4), (4, 3)]
    assert all(f.flags.c_contiguous for f in found)


def test_arguments_have_their_names_and_state_is_bound() -> None:
    def forward(self: Any, x: torch.Tensor, pair: Any, *, mask: Any = None, **more: Any) -> torch.Tensor:
        return torch.where(mask, x * self.w + pair[0], pair[1]["b"]) * more["scale"] * 3

    net = module(forward, w=torch.randn(4))
    x, a, b = (torch.randn(2, 4) for _ in range(3))
    call = {"mask": x > 0, "scale": torch.randn(4)}
    frozen = freeze("net", net, (x, (a, {"b": b})), call)
    assert sorted(frozen.inputs.values()) == ["mask", "pair[0]", "pair[1]['b']", "scale", "x"]
    assert len(frozen.load().graph.inputs) == 5
    _results(net, x, (a, {"b": b}), **call)


def test_what_changes_a_weight_changes_the_program() -> None:
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    first = _results(net, x)
    with torch.no_grad():
        net.weight.mul_(2)
    assert not np.allclose(first[0], _results(net, x)[0])


def test_recurrent_layers_and_normalizations_in_eval_mode() -> None:
    _results(nn.LSTM(4, 3, batch_first=True), torch.randn(2, 5, 4))
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU())
    _results(net.train(), torch.randn(2, 2, 6, 6))


def test_a_state_of_half_precision_is_bound() -> None:
    _results(module(lambda self, x: x * self.w, w=torch.randn(4).to(torch.bfloat16)), torch.randn(2, 4))


def _counted_up(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Ends by what numbers say: which a capture that computes none has to notice."""
    while x.sum() < 10:
        x = x + self.n
    return x


def test_a_capture_computes_nothing() -> None:
    """3 * 10^13 operations would take minutes."""
    net = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)))
    frozen = freeze("net", net, (torch.zeros(1, 1, 1, 1).expand(64, 64, 512, 512),), {})
    assert max(t.numel() for t in frozen.arguments) == 64 * 64 * 512 * 512


@pytest.mark.parametrize(
    ("forward", "error", "message"),
    [
        (lambda self, x: self.n.add_(1) * x, Unsupported, "changes its arguments or its state"),
        (lambda self, x: torch.fft.fft(x), Unsupported, "complex"),
        (lambda self, x: x + 1 if x.sum() > 0 else x - 1, CaptureError, "no single graph"),
        (_counted_up, CaptureError, "no single graph"),
        (lambda self, x: x.bfloat16(), Unsupported, "bfloat16"),
        (lambda self, x: x @ self.n, CaptureError, "the call fails"),
        (lambda self: torch.tensor(1), CaptureError, "the call fails"),
    ],
)
def test_what_arrays_cannot_say_is_refused(forward: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _results(module(forward, n=torch.ones(1)), torch.ones(3))
