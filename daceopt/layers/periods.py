"""The longest stretch of a sequence that repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Period(NamedTuple):
    """From ``start`` on, ``equal`` elements are each the same as the one ``length`` later."""

    start: int
    length: int
    equal: int

    @property
    def end(self) -> int:
        """Behind the last element that is equal to one ``length`` earlier."""
        return self.start + self.equal + self.length

    @property
    def windows(self) -> int:
        """How many times the elements of one period follow one another as a whole."""
        return 1 + self.equal // self.length

    def window(self, k: int) -> range:
        """Where the elements of the k-th time are."""
        return range(self.start + k * self.length, self.start + (k + 1) * self.length)

    def behind(self, position: int) -> Period:
        """What of it begins behind an element."""
        return Period(position + 1, self.length, self.start + self.equal - position - 1)

    def has(self, position: int) -> bool:
        """Does the element there belong to the stretch?"""
        return self.start <= position < self.end


def longest_period(keys: Sequence[int], windows: int) -> Period | None:
    """The longest stretch that repeats at least ``windows`` times, of the shortest period; None where none does."""
    numbers = np.asarray(keys, dtype=np.int64)
    best: Period | None = None
    for length in range(1, len(numbers) // windows + 1):
        start, equal = _longest_run(numbers[:-length] == numbers[length:])
        if equal >= (windows - 1) * length and (best is None or equal > best.equal):
            best = Period(start, length, equal)
    return best


def _longest_run(holds: np.ndarray) -> tuple[int, int]:
    """Where the longest run of true values begins, and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], holds.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    at = int(np.argmax(lengths))
    return int(edges[::2][at]), int(lengths[at])
