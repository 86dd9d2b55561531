"""What a trace knows already is a constant of the graph, unless it only repeats a value or is large."""

from __future__ import annotations

import torch

from tests.capture.torch.checking import check


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Positions and a mask as models make them anew in each call."""
    positions = torch.arange(x.shape[1]).unsqueeze(0).expand(x.shape[0], -1)
    first = torch.cat([positions[:, :1] - 1, positions], -1).diff() != 1
    return x.masked_fill(first.cumsum(-1) > 0, 0.0) + positions


def test_masks_of_positions_are_constants() -> None:
    graph = check(_packed, torch.randn(3, 5)).graphs[0].pair.graphs.forward
    assert not [n for n in graph.nodes() if type(n).__name__ == "Algorithm" or n.label in ("cumsum", "ne", "sub")]


def test_open_sizes_are_not_folded() -> None:
    check(_packed, torch.randn(3, 5), dynamic=True)


def test_random_numbers_are_drawn_anew() -> None:
    graph = check(lambda x: x * 0 + torch.rand(4) * 0, torch.randn(4)).graphs[0].pair.graphs.forward
    assert graph.uses_seed


def test_repeated_values_stay_repeated() -> None:
    graph = check(lambda x: x + torch.full((64, 64), 2.5), torch.randn(64, 64)).graphs[0].pair.graphs.forward
    assert all(value.size == 1 for value in graph.constants.values())


def _shown(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask = torch.where(torch.arange(4) > 1, 1.0, 2.0)
    return x + 1, mask[1:], mask.view(2, 2).t()


def test_a_constant_that_only_views_of_it_show_is_a_result() -> None:
    check(_shown, torch.randn(3))
