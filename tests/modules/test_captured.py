"""One call captured on the side has the graphs that the call itself would compile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from daceopt.modules.captured import capture_graphs
from daceopt.modules.options import check


def scaled(x: torch.Tensor, number: int) -> torch.Tensor:
    x = torch.relu(x)
    torch._dynamo.graph_break()
    return x.sum(0) * number


class Scaling(nn.Module):
    """Calls a function that is compiled for itself with another number each time."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.numbers:
            x = scaled(x, number)
            torch._dynamo.graph_break()
        return x


@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, -2, 3)], ids=str)
def test_numbers_that_change_inside_of_a_call(numbers: tuple[int, ...]) -> None:
    found = capture_graphs(Scaling(numbers), (torch.randn(4, 3),), {}, check(fallback="silent"))
    assert not found.refused
    assert len(found.graphs) >= 1 + len(numbers)
