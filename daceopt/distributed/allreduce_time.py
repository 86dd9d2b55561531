"""How long the reduction of a gradient over all ranks takes: T = Cx + D (DisCo, section 4.2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from daceopt.errors import DaceoptError

_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class AllReduceTime:
    """``per_byte`` (C) seconds for each byte of a tensor, and ``overhead`` (D) for each call, on ``world`` ranks.

    ``processor``: seconds for each byte in which the core that computes works for the reduction instead; 0 where
    reductions have a core, or a device, of their own.
    """

    world: int
    per_byte: float
    overhead: float
    processor: float = 0.0

    def __post_init__(self) -> None:
        if self.world < 1:
            raise DaceoptError(f"a world of {self.world} ranks: expected 1 or more")
        if not all(0 <= value < float("inf") for value in (self.per_byte, self.overhead, self.processor)):
            said = f"{self.per_byte} s a byte, {self.overhead} s a call and {self.processor} s a byte of a core"
            raise DaceoptError(f"an all-reduce cannot take {said}")

    def seconds(self, nbytes: float) -> float:
        """Of one call for a tensor of so many bytes; nothing in a world of one."""
        return self.per_byte * nbytes + self.overhead if self.world > 1 else 0.0

    @classmethod
    def ring(cls, world: int, bandwidth: float, latency: float = 0.0, processor: float = 0.0) -> AllReduceTime:
        """A ring over links of ``bandwidth`` bits per second in each direction and ``latency`` seconds; no byte faster
        than ``processor``.

        Each rank sends 2(N-1)/N of the tensor, in 2(N-1) rounds (Patarasuk and Yuan, Bandwidth Optimal All-reduce
        Algorithms, 2009).
        """
        if not bandwidth > 0:
            raise DaceoptError(f"a bandwidth of {bandwidth} bit/s: expected more than 0")
        rounds = 2 * (world - 1)
        return cls(world, max(8 * rounds / world / bandwidth, processor), rounds * latency, processor)

    @classmethod
    def fitted(
        cls, world: int, samples: Sequence[tuple[int, float]], worked: Sequence[tuple[int, float]] = ()
    ) -> AllReduceTime:
        """The line through (bytes, seconds) that outliers do not move (Theil, 1950, and Sen, 1968): the median of the
        slopes between all pairs, and the median of what they leave. ``worked``: (bytes, seconds of the core), of which
        only the slope counts. Raises DaceoptError for fewer than two sizes."""
        slope = _slope(samples)
        overhead = max(0.0, _median([t - slope * x for x, t in samples]))
        return cls(world, slope, overhead, min(slope, _slope(worked)) if worked else 0.0)


def _slope(samples: Sequence[tuple[int, float]]) -> float:
    slopes = [(t - s) / (y - x) for x, s in samples for y, t in samples if y > x]
    if not slopes:
        raise DaceoptError("two sizes at least must be measured to know bandwidth and overhead apart")
    return max(0.0, _median(slopes))


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def bandwidth_of(text: str) -> float:
    """``"10Gbit"`` -> bits per second. Raises DaceoptError."""
    return _quantity(text, r"([kmgt]?)bit(?:/s)?", _BITS, "a bandwidth", "10Gbit or 800Mbit")


def duration_of(text: str) -> float:
    """``"50us"`` -> seconds. Raises DaceoptError."""
    return _quantity(text, r"(ns|us|ms|s)", _SECONDS, "a time", "50us or 60s")


def _quantity(text: str, unit: str, factors: dict[str, float], what: str, example: str) -> float:
    parts = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*{unit}\s*", text, re.IGNORECASE)
    if parts is None:
        raise DaceoptError(f"{text!r} is not {what}: expected a number with its unit, such as {example}")
    return float(parts[1]) * factors[parts[2].lower()]
