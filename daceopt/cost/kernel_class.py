"""Classes of kernels by what most of their time may go into, and how far the model is from measurements of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Any

from daceopt import system as facts
from daceopt.store.cache import key
from daceopt.store.values import Values

_KIND, _VERSION = "model-error", 2
WITHIN = 1.25
"""A factor within which a time is called known."""

_UNITS = {
    "micro-kernels": ("multiplication",),
    "strided": ("strided",),
    "sums": ("wide", "lanes"),
    "functions": ("exp", "erf", "tanh", "log", "power", "sine"),
}


def kernel_class(loops: Mapping[str, float], threads: int) -> str:
    """The first of: micro-kernels, strided (or gathered), sums, functions, short (by one thread), streaming. ``loops``:
    what ``loop_work`` counts."""
    for name, units in _UNITS.items():
        if any(loops.get(unit) for unit in units):
            return name
    return "short" if threads == 1 else "streaming"


@dataclass(frozen=True)
class ModelError:
    """Of ``count`` kernels: the geometric mean of the factors by which modelled times are off, and the share that is
    off by less than ``WITHIN``; by number, and by the time that kernels take."""

    count: int
    factor: float
    share: float
    factor_by_time: float
    share_by_time: float

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> ModelError:
        """Of (modelled, measured) seconds, at least one pair."""
        errors = [(abs(log(model / seconds)), seconds) for model, seconds in pairs]
        total = sum(seconds for _, seconds in errors)
        near = [(error <= log(WITHIN), seconds) for error, seconds in errors]
        return cls(
            len(errors),
            exp(sum(error for error, _ in errors) / len(errors)),
            sum(is_near for is_near, _ in near) / len(near),
            exp(sum(error * seconds for error, seconds in errors) / total),
            sum(seconds for is_near, seconds in near if is_near) / total,
        )


def keep(errors: Mapping[str, ModelError]) -> None:
    """Keep what was measured on this machine, by class, in the place of what was before."""
    _ERRORS.keep(_identity(), dict(errors))


def last_errors() -> dict[str, ModelError] | None:
    """What was measured on this machine last; None where nothing was."""
    return _ERRORS.find(_identity())


def _identity() -> str:
    return key(_KIND, _VERSION, facts.fingerprint(), facts.march())


def _parse(content: dict[str, Any]) -> dict[str, ModelError]:
    return {name: ModelError(**fields) for name, fields in content.items()}


_ERRORS = Values(_KIND, _parse)
