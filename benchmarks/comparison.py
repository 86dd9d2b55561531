"""One row of a table: contenders that compute the same, checked against float64, measured in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.checking import Check
from benchmarks.contenders import Contender, wrong
from benchmarks.harness import OURS, Budget, Result, at_least
from benchmarks.measurement import Measurement, measure

_TRIES = 3  # on a machine that does not hold still


def compare(
    case: str,
    name: str,
    contenders: Mapping[str, Contender],
    check: Check,
    budget: Budget,
    *,
    limit: float | None,
    absent: Mapping[str, str],
) -> Result:
    """Milliseconds of each contender, with the goal of being at least as fast as the best peer.

    A contender whose results are wrong is not measured, and the goal is missed if it is ours; a ratio that the noise
    of the machine decides has no verdict.
    """
    faults = wrong(contenders, check.fault)
    notes = {**absent, **{who: f"WRONG: {text}" for who, text in faults.items()}}
    if OURS in faults:
        return Result(case, name, "ms", {}, "right results", False, notes)
    measured = _steady({who: c for who, c in contenders.items() if who not in faults}, budget)
    values = {who: seconds * 1e3 for who, seconds in measured.medians.items()}
    goal, is_met = at_least(values, 1.0, *(who for who in values if who != OURS))
    if not measured.is_steady:
        notes["too noisy to tell"] = f"halves differ by {measured.drift:.0%}"
    verdict, ms = is_met if measured.is_steady else None, None if limit is None else limit * 1e3
    return Result(case, name, "ms", values, goal, verdict, notes, measured.spread, ms)


def _steady(contenders: Mapping[str, Contender], budget: Budget) -> Measurement:
    """The first measurement that is steady, or the steadiest."""
    calls = {who: c.call for who, c in contenders.items()}
    measurements: list[Measurement] = []
    while not measurements or (not measurements[-1].is_steady and len(measurements) < _TRIES):
        measurements.append(measure(calls, budget))
    return min(measurements, key=lambda m: m.drift)


def participants(names: Sequence[str], budget: Budget) -> tuple[str, ...]:
    """Who takes part: those that the budget names beside ours, or ``names``."""
    return tuple(names) if budget.peers is None else tuple(dict.fromkeys([*budget.peers, OURS]))
