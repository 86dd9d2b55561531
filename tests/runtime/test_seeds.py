"""Seeds follow PyTorch's generator, and a seed's numbers can be replayed."""

from __future__ import annotations

import numpy as np
import torch

from daceopt.runtime import seeds


def test_manual_seed_governs():
    torch.manual_seed(5)
    first = [seeds.draw_seed() for _ in range(3)]
    torch.manual_seed(5)
    assert [seeds.draw_seed() for _ in range(3)] == first
    assert len(set(first)) == 3


def test_drawing_a_seed_advances_the_generator():
    torch.manual_seed(5)
    a = torch.rand(1)
    torch.manual_seed(5)
    seeds.draw_seed()
    assert not torch.equal(torch.rand(1), a)


def test_replay():
    numbers = seeds.uniform(7, 2, 1000)
    assert numbers.dtype == np.float32 and numbers.shape == (1000,)
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.05
    assert np.array_equal(seeds.uniform(7, 2, np.array([[3, 999]])), [[numbers[3], numbers[999]]])
    assert not np.array_equal(seeds.uniform(7, 3, 1000), numbers)
    assert not np.array_equal(seeds.uniform(8, 2, 1000), numbers)
