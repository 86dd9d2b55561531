"""What to store within a budget, by rules of thumb that take a fraction of a second.

Good starts are improved value by value. Among the starts are checkpoints at even distances, whose segments are computed
again one at a time (Chen et al., Training deep nets with sublinear memory cost, 2016, algorithm 3), here of any graph:
a checkpoint is what is alive between two nodes of the forward, where that is small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from daceopt.autodiff.storage_problem import StorageOutcome, StorageProblem

_SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ROUNDS = 3


def solve(problem: StorageProblem, starts: Collection[frozenset[int]], deadline: float) -> StorageOutcome:
    """The fastest choice that fits the budget; where none was found, the one of which least is alive at once.

    ``starts``: choices to begin with. At ``deadline`` (of ``time.monotonic``) it takes what it has.
    """
    outcomes = {problem.outcome(start) for start in (*starts, frozenset(problem.free), *_segments(problem))}
    best: StorageOutcome | None = None
    for start in sorted(outcomes, key=lambda o: rank(problem, o)):
        improved = _improve(problem, start, deadline)
        if best is None or rank(problem, improved) < rank(problem, best):
            best = improved
        if time.monotonic() > deadline:
            break
    assert best is not None
    return best


def rank(problem: StorageProblem, outcome: StorageOutcome) -> tuple[bool, float, float]:
    """Less is better: what fits, by time; what does not, by its peak."""
    if outcome.peak <= problem.budget:
        return False, outcome.seconds, outcome.peak
    return True, outcome.peak, outcome.seconds


def _improve(problem: StorageProblem, outcome: StorageOutcome, deadline: float) -> StorageOutcome:
    for _ in range(_ROUNDS):
        if outcome.peak <= problem.budget:
            break
        before = outcome.peak
        outcome = _change(problem, outcome, _dropping, lambda new, old: new.peak < old.peak, deadline)
        if outcome.peak > problem.budget:
            outcome = _change(problem, outcome, _adding, lambda new, old: new.peak < old.peak, deadline)
        if outcome.peak == before:
            return outcome
    return _change(
        problem, outcome, _adding, lambda new, old: new.peak <= problem.budget and new.seconds < old.seconds, deadline
    )


def _change(
    problem: StorageProblem,
    outcome: StorageOutcome,
    moves: Callable[[StorageProblem, StorageOutcome], list[int]],
    better: Callable[[StorageOutcome, StorageOutcome], bool],
    deadline: float,
) -> StorageOutcome:
    """``outcome`` with those of ``moves`` (values that change sides, the best first) that make it better, many at once
    where that works."""
    waiting = moves(problem, outcome)
    step = max(1, len(waiting) // 2)
    while waiting and time.monotonic() < deadline:
        if moves is _dropping and outcome.peak <= problem.budget:
            break
        changed = waiting[:step]
        new = problem.outcome(outcome.stored.symmetric_difference(changed))
        if better(new, outcome):
            outcome, waiting, step = new, waiting[step:], 2 * step
        elif step > 1:
            step //= 2
        else:
            waiting = waiting[1:]
    return outcome


def _dropping(problem: StorageProblem, outcome: StorageOutcome) -> list[int]:
    """Stored values, those first that free most bytes for the seconds that they take."""
    stored = [v for v in problem.free if v in outcome.stored and problem.values[v].bytes]
    return sorted(stored, key=lambda v: _rate(problem, v))


def _adding(problem: StorageProblem, outcome: StorageOutcome) -> list[int]:
    """Values that are computed again, those first that save most seconds for their bytes."""
    again = {v for c in outcome.again for v in problem.forward[c].writes}
    return sorted((v for v in problem.free if v in again), key=lambda v: -_rate(problem, v))


def _rate(problem: StorageProblem, v: int) -> float:
    value = problem.values[v]
    return sum(problem.forward[c].seconds for c in value.makers) / max(value.bytes, 1)


# -------------------------------------------------------------------- checkpoints


def _segments(problem: StorageProblem) -> Iterator[frozenset[int]]:
    sizes = [sum(problem.values[v].forward for v in c.writes) for c in problem.forward]
    alive = list(_alive(problem))
    for count in _SEGMENTS:
        if count <= len(sizes):
            yield _checkpoints(problem, sizes, alive, sum(sizes) / count)


def _alive(problem: StorageProblem) -> Iterator[frozenset[int]]:
    """After each node of the forward: the values that a later one reads."""
    last: dict[int, int] = {}
    for k, computation in enumerate(problem.forward):
        last |= dict.fromkeys(computation.reads, k)
    alive: set[int] = set()
    for k, computation in enumerate(problem.forward):
        alive |= {v for v in computation.writes if last.get(v, -1) > k}
        alive = {v for v in alive if last[v] > k}
        yield frozenset(alive)


def _checkpoints(problem: StorageProblem, sizes: list[int], alive: list[frozenset[int]], size: float) -> frozenset[int]:
    """What is alive between segments of about ``size`` bytes."""
    stored: set[int] = set()
    width = [sum(problem.values[v].bytes for v in cut) for cut in alive]
    spent, best = 0, -1
    for k, count in enumerate(sizes):
        spent += count
        if spent >= size / 2 and (best < 0 or width[k] <= width[best]):
            best = k
        if spent >= size:
            stored |= alive[best]
            spent, best = sum(sizes[best + 1 : k + 1]), -1
    return frozenset(stored)
