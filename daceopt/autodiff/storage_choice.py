"""Choosers of what to store, from one problem: which of them, how long they may take, and what they proved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from daceopt.autodiff import greedy_storage
from daceopt.autodiff.storage_problem import Outcome, StorageProblem


@dataclass(frozen=True)
class StorageChoice:
    """``outcome`` of the choice that ``by`` found; ``bound``: seconds below which none stays that fits the budget, as
    far as that was proved."""

    outcome: Outcome
    by: str
    bound: float = 0.0

    @property
    def gap(self) -> float:
        """The share of its seconds by which a choice may be better at most."""
        seconds = self.outcome.seconds
        return max(0.0, 1 - self.bound / seconds) if seconds > 0 else 0.0


Chooser = Callable[[StorageProblem, StorageChoice, float], StorageChoice]
CHOOSERS: dict[str, Chooser | None] = {"greedy": None}
BY = ("best", *CHOOSERS)


def choose(problem: StorageProblem, start: frozenset[int], by: str = "best", seconds: float = 5.0) -> StorageChoice:
    """The best that the chooser ``by`` finds in ``seconds``, never worse than the rules of thumb; "best": of all.

    ``start``: what would be stored without a budget. Where nothing that was found fits the budget, the choice of which
    least is alive at once.
    """
    deadline = time.monotonic() + seconds
    best = StorageChoice(greedy_storage.solve(problem, [start], deadline), "greedy")
    for name, chooser in CHOOSERS.items():
        if chooser is not None and by in ("best", name):
            found = chooser(problem, best, deadline)
            better = greedy_storage.rank(problem, found.outcome) < greedy_storage.rank(problem, best.outcome)
            bound = max(best.bound, found.bound)
            best = replace(found if better else best, bound=bound)
    return best
