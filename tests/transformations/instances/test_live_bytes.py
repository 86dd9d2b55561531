"""Profiles of live bytes against lists of numbers."""

from __future__ import annotations

import numpy as np
import pytest

from transformations.instances._live_bytes import Profile

SIZE = 13


def test_one_node() -> None:
    profile = Profile.at(4, SIZE)
    assert profile.peak == 0
    assert profile.with_bytes(0, 3, 7).peak == 0  # nothing runs there
    assert profile.with_bytes(2, SIZE, 7).with_bytes(4, 4, 5).peak == 12
    assert profile.peak == 0  # it is as it was


@pytest.mark.parametrize("seed", range(10))
def test_groups_that_merge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = [(Profile.at(k, SIZE), {k}, np.zeros(SIZE)) for k in range(SIZE)]
    while len(groups) > 1:
        a, b = rng.choice(len(groups), 2, replace=False)
        (one, own, alive), (other, more, extra) = groups[a], groups[b]
        profile, members, total = one.merge(other), own | more, alive + extra
        for _ in range(2):
            first, last = sorted(map(int, rng.integers(0, SIZE, 2)))
            size = int(rng.integers(-3, 9))
            profile, total = profile.with_bytes(first, last, size), total.copy()
            total[first : last + 1] += size
        assert profile.peak == max(total[k] for k in members)
        groups = [g for k, g in enumerate(groups) if k not in (a, b)] + [(profile, members, total)]
