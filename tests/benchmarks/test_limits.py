"""What a network must spend, counted."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import limits


def _operations(layer: nn.Module, x: torch.Tensor, training: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """The operations whose time the limit holds, at one a second and with bytes that cost nothing."""

    class OnePerSecond:
        product, products = 1.0, ()

        def seconds(self, moved: float, operations: float, threads: int) -> float:
            return 0.0

    monkeypatch.setattr(limits, "rates", OnePerSecond)
    return round(limits.product_limit(layer, (x,), training))


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_gradients_of_a_convolution_cost_twice_its_forward(
    kind: type[nn.Module], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In groups as well, where PyTorch's counter takes the weight's gradient for a dense one's."""
    first, layer, x = nn.Conv2d(8, 8, 1), kind(8, 16, 3, stride=2, groups=groups), torch.randn(2, 8, 9, 9)
    operations = []
    for part in (first, layer):
        with FlopCounterMode(display=False) as counter:
            part(x)
        operations.append(counter.get_total_flops())
    both = nn.Sequential(first, layer)
    assert _operations(both, x, False, monkeypatch) == sum(operations)
    assert _operations(both, x, True, monkeypatch) == 2 * operations[0] + 3 * operations[1]


class _Hidden(nn.LSTM):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


def test_recurrent_layers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's fast path for them is one operator that its counter does not know."""
    steps, sequences, features, size = 5, 3, 8, 6
    x = torch.randn(sequences, steps, features)
    expected = 2 * steps * sequences * 4 * size * (features + size)
    assert _operations(_Hidden(features, size, batch_first=True), x, False, monkeypatch) == expected
