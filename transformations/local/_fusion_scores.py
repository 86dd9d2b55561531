"""What kernels that could be fused cost: by bytes, by the machine's roofline, in number, or by the clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import TypeAlias

from daceopt.errors import DaceoptError, did_you_mean
from daceopt.transformations.local._fusion_space import FusionCandidate

Score: TypeAlias = Callable[[FusionCandidate], float]

_ONE_KERNEL = 1.0  # byte: of two ways that move as much, the one with fewer kernels


def moved_bytes(candidate: FusionCandidate) -> float:
    """Bytes that the kernel moves."""
    return candidate.bytes + _ONE_KERNEL


def roofline_seconds(candidate: FusionCandidate) -> float:
    """Seconds that bytes and operations take at the rates of this machine, and one start."""
    return candidate.seconds


def kernel_count(candidate: FusionCandidate) -> float:
    """One: the largest regions win."""
    return 1.0


SCORES: dict[str, Score] = {"bytes": moved_bytes, "roofline": roofline_seconds, "kernels": kernel_count}
MEASURED = "measured"


def estimate(score: str | Score) -> Score:
    """What ranks candidates while they are found. Raises DaceoptError for an unknown name; a function of the user's
    does where it returns no number."""
    if callable(score):
        return partial(_number, score)
    if score == MEASURED:
        return roofline_seconds
    if score not in SCORES:
        names = [*SCORES, MEASURED]
        hint = did_you_mean(score, names)
        raise DaceoptError(f"score={score!r}: expected one of {', '.join(names)}, or a function of a candidate{hint}")
    return SCORES[score]


def _number(score: Score, candidate: FusionCandidate) -> float:
    value = score(candidate)
    if not isinstance(value, (int, float)) or not isfinite(value):
        raise DaceoptError(f"the scoring function {score} returned {value!r}; expected a finite number")
    return float(value)
