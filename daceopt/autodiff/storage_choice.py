"""Choosers of what to store, from one problem: which of them, how long they may take, and what they proved."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from daceopt.autodiff import chain_storage, greedy_storage
from daceopt.autodiff.storage_problem import StorageOutcome, StorageProblem
from daceopt.autodiff.storage_program import FEW_VARIABLES, MOST_VARIABLES, StorageProgram
from daceopt.errors import DaceoptError


@dataclass(frozen=True)
class StorageChoice:
    """``outcome`` of the choice that ``by`` found; ``bound``: seconds below which none stays that fits the budget, as
    far as that was proved."""

    outcome: StorageOutcome
    by: str
    bound: float = 0.0

    @property
    def gap(self) -> float:
        """The share of its seconds by which a choice may be better at most."""
        seconds = self.outcome.seconds
        return max(0.0, 1 - self.bound / seconds) if seconds > 0 else 0.0


BY = ("best", "greedy", "chain", "program")


def choose(problem: StorageProblem, start: frozenset[int], by: str = "best", seconds: float = 5.0) -> StorageChoice:
    """The best that the chooser ``by`` finds in about ``seconds``, never worse than the rules of thumb; "best": of all.

    ``start``: what would be stored without a budget; it is taken if it fits. Where nothing that was found fits the
    budget, the choice of which least is alive at once. Raises DaceoptError for ``by="program"`` without HiGHS.
    """
    unbounded = problem.outcome(start)
    if unbounded.peak <= problem.budget:
        return StorageChoice(unbounded, "what is done without a budget")
    deadline = time.monotonic() + seconds
    best = StorageChoice(greedy_storage.solve(problem, [start], deadline), "greedy")
    if by in ("best", "chain"):
        best = _by_chain(problem, best)
    if by in ("best", "program"):
        best = _by_program(problem, best, deadline, required=by == "program")
    return best


def _by_chain(problem: StorageProblem, best: StorageChoice) -> StorageChoice:
    chain = chain_storage.chain_of(problem)
    outcome = None if chain is None else chain_storage.solve(problem, chain)
    return best if outcome is None else _better(problem, best, StorageChoice(outcome, "chain"))


def _by_program(problem: StorageProblem, best: StorageChoice, deadline: float, required: bool) -> StorageChoice:
    program = StorageProgram(problem)
    if best.outcome.peak > problem.budget or program.size > (MOST_VARIABLES if required else FEW_VARIABLES):
        return best
    try:
        stored, bound = program.solve(best.outcome.stored, deadline)
    except ImportError as error:
        if required:
            raise DaceoptError("the integer program needs HiGHS: pip install highspy, or choose another by") from error
        return best
    choice = best if stored is None else _better(problem, best, StorageChoice(problem.outcome(stored), "program"))
    return replace(choice, bound=min(bound, choice.outcome.seconds))


def _better(problem: StorageProblem, first: StorageChoice, second: StorageChoice) -> StorageChoice:
    ranks = [greedy_storage.rank(problem, c.outcome) for c in (first, second)]
    return second if ranks[1] < ranks[0] else first
