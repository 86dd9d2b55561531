"""How long the reduction of a gradient over all ranks takes: T = Cx + D (DisCo, section 4.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from daceopt.errors import DaceoptError

Bytes = TypeVar("Bytes", float, "np.ndarray")  # of one call, or of several

_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class LinearTime(NamedTuple):
    """Seconds for each byte, and for each call."""

    per_byte: float
    overhead: float

    def at(self, nbytes: Bytes) -> Bytes:
        """Of one call for so many bytes, or of each of several."""
        return self.per_byte * nbytes + self.overhead

    @classmethod
    def through(cls, samples: Sequence[tuple[int, float]]) -> LinearTime:
        """The line through (bytes, seconds) that outliers do not move (Theil, 1950, and Sen, 1968): the median of the
        slopes between all pairs, and the median of what they leave. Raises DaceoptError for fewer than two sizes."""
        slopes = [(t - s) / (y - x) for x, s in samples for y, t in samples if y > x]
        if not slopes:
            raise DaceoptError("two sizes at least must be measured to know bandwidth and overhead apart")
        slope = max(0.0, median(slopes))
        return cls(slope, max(0.0, median([t - slope * x for x, t in samples])))


@dataclass(frozen=True)
class AllReduceTime:
    """``per_byte`` (C) seconds for each byte of a tensor, and ``overhead`` (D) for each call, on ``world`` ranks that
    wait for it.

    ``beside``: the same while all of them compute, several calls on their way, each for its share of the time: where a
    reduction has no core of its own, its threads wait for one, several at once. ``processor``: what of that the core
    that computes works for the reduction instead. None: reductions have a core, or a device, of their own.
    """

    world: int
    per_byte: float
    overhead: float
    beside: LinearTime | None = None
    processor: LinearTime | None = None

    def __post_init__(self) -> None:
        if self.world < 1:
            raise DaceoptError(f"a world of {self.world} ranks: expected 1 or more")
        alone = LinearTime(self.per_byte, self.overhead)
        for which, line in (("", alone), (" beside computing", self.beside), (" of a core", self.processor)):
            if line is not None and not all(0 <= value < float("inf") for value in line):
                raise DaceoptError(f"an all-reduce cannot take {line[0]} s a byte and {line[1]} s a call{which}")

    def seconds(self, nbytes: Bytes) -> Bytes:
        """Of one call for a tensor of so many bytes, or of each of several; nothing in a world of one."""
        return self.per_byte * nbytes + self.overhead if self.world > 1 else 0.0 * nbytes

    def beside_computing(self, nbytes: Bytes) -> Bytes:
        """The same while ranks compute: no less."""
        alone = self.seconds(nbytes)
        return np.maximum(alone, self.beside.at(nbytes)) if self.beside and self.world > 1 else alone

    def taken_seconds(self, nbytes: Bytes) -> Bytes:
        """Seconds in which a core that computes works for the call instead: no more than it takes."""
        return np.minimum(self.processor.at(nbytes), self.beside_computing(nbytes)) if self.processor else 0.0 * nbytes

    @classmethod
    def ring(cls, world: int, bandwidth: float, latency: float = 0.0) -> AllReduceTime:
        """A ring over links of ``bandwidth`` bits per second in each direction and ``latency`` seconds.

        Each rank sends 2(N-1)/N of the tensor, in 2(N-1) rounds (Patarasuk and Yuan, Bandwidth Optimal All-reduce
        Algorithms, 2009).
        """
        if not bandwidth > 0:
            raise DaceoptError(f"a bandwidth of {bandwidth} bit/s: expected more than 0")
        rounds = 2 * (world - 1)
        return cls(world, 8 * rounds / world / bandwidth, rounds * latency)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> AllReduceTime:
        """From what ``dataclasses.asdict`` made of one, by way of JSON."""
        lines = {
            name: LinearTime(*fields[name]) if fields[name] is not None else None for name in ("beside", "processor")
        }
        return cls(int(fields["world"]), float(fields["per_byte"]), float(fields["overhead"]), **lines)

    def __str__(self) -> str:
        text = f"an all-reduce: {_line_text(LinearTime(self.per_byte, self.overhead))}"
        text += f"; beside computing {_line_text(self.beside)}" if self.beside else ""
        return text + (f", of which a core that computes works {_line_text(self.processor)}" if self.processor else "")


def _line_text(line: LinearTime) -> str:
    return f"{1e9 * line.per_byte:.3f} ns a byte and {1e6 * line.overhead:.0f} us a call"


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
