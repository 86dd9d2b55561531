"""Medians of interleaved runs, their spread, and whether the machine was quiet enough to tell who is faster."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.contenders import Call
from benchmarks.harness import OURS, Budget
from daceopt.cost.measure import sample

UNSTEADY = 0.10
"""Halves of a measurement whose ratios differ by more than this share tell nothing."""


@dataclass(frozen=True)
class Measurement:
    """``samples``: seconds of each contender, round by round."""

    samples: Mapping[str, list[float]]

    @property
    def medians(self) -> dict[str, float]:
        return {who: statistics.median(values) for who, values in self.samples.items()}

    @property
    def spread(self) -> dict[str, float]:
        """The quartiles' distance as a share of the median."""
        return {who: _spread(values) for who, values in self.samples.items()}

    @property
    def drift(self) -> float:
        """By what share the best peer's time over ours differs between even and odd rounds: 0 on a quiet machine.

        Rounds of both kinds are spread alike over the time of the measurement, so only noise tells them apart.
        """
        if OURS not in self.samples or len(self.samples) < 2:
            return 0.0
        even, odd = ({who: statistics.median(v[k::2]) for who, v in self.samples.items()} for k in (0, 1))
        ratios = [min(t for who, t in half.items() if who != OURS) / half[OURS] for half in (even, odd)]
        return max(ratios) / min(ratios) - 1

    @property
    def is_steady(self) -> bool:
        return self.drift <= UNSTEADY


def measure(calls: Mapping[str, Call], budget: Budget) -> Measurement:
    """Let ``calls`` take turns for the time of ``budget``."""
    return Measurement(sample(calls, seconds=budget.seconds))


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / statistics.median(values)
