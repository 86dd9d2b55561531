"""What to store of a chain, each of whose arrays is computed from the one before, by a dynamic program.

Segments between stored values are computed again one at a time. For a bound on what a segment takes, it is the fastest
choice whose stored values take no more than the rest of the budget, with bytes and seconds of each value, and each
computed again once. Bytes are rounded up to shares of that rest.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from daceopt.autodiff.storage_problem import StorageOutcome, StorageProblem

_SHARES = 256
_BOUNDS = 24
_LONGEST = 400  # values; the steps grow with the square


def chain_of(problem: StorageProblem) -> list[int] | None:
    """The values in order where the forward is a chain, else None."""
    values: list[int] = []
    for computation in problem.forward:
        reads = [v for v in computation.reads if problem.values[v].makers]
        if len(computation.writes) != 1 or reads != values[-1:]:
            return None
        values.append(computation.writes[0])
    return values if len(values) <= _LONGEST else None


def solve(problem: StorageProblem, chain: list[int]) -> StorageOutcome | None:
    """The fastest choice that was found within the budget; None where none was."""
    sizes = np.array([problem.values[v].again for v in chain])
    ends = [0, *accumulate(sizes)]
    sums = sorted({ends[k] - ends[i] for i in range(len(ends)) for k in range(i, len(ends))})
    bounds = sums if len(sums) <= _BOUNDS else [sums[int(k)] for k in np.linspace(0, len(sums) - 1, _BOUNDS)]
    tried = {problem.outcome(s) for b in bounds if b < problem.budget for s in _choose_stored(problem, chain, ends, b)}
    return min((o for o in tried if o.peak <= problem.budget), key=lambda o: o.seconds, default=None)


def _choose_stored(problem: StorageProblem, chain: list[int], ends: list[int], bound: int) -> list[frozenset[int]]:
    """Fastest choices whose segments take at most ``bound``; ``ends``: bytes of the values before each."""
    count, room = len(chain), max(problem.budget - bound, 1)
    spent = [0.0, *accumulate(sum(problem.forward[c].seconds for c in problem.values[v].makers) for v in chain)]
    shares = [-(-problem.values[v].bytes * _SHARES // room) for v in chain]
    best = np.full((count + 2, _SHARES + 1), np.inf)  # by the value stored last, and shares
    best[0] = 0.0
    source = np.zeros((count + 2, _SHARES + 1), dtype=np.int64)
    for k in range(1, count + 2):
        weight = shares[k - 1] if k <= count else 0
        if weight > _SHARES or (k <= count and chain[k - 1] in problem.repeated):
            continue
        for i in range(k - 1, -1, -1):
            if ends[k - 1] - ends[i] > bound:
                break
            row = np.full(_SHARES + 1, np.inf)
            row[weight:] = best[i][: _SHARES + 1 - weight] + spent[k - 1] - spent[i]
            better = row < best[k]
            best[k][better], source[k][better] = row[better], i
            if i and chain[i - 1] in problem.fixed:
                break
    if not np.isfinite(best[count + 1][_SHARES]):
        return []
    return [_follow(chain, source, shares)]


def _follow(chain: list[int], source: np.ndarray, shares: list[int]) -> frozenset[int]:
    """The stored values on the way to the end."""
    followed, k, free_shares = set(), len(chain) + 1, _SHARES
    while (i := int(source[k][free_shares])) > 0:
        free_shares -= shares[k - 1] if k <= len(chain) else 0
        followed.add(chain[i - 1])
        k = i
    return frozenset(followed)
