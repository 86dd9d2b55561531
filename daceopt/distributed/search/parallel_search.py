"""The same search from several seeds at once, a process each: candidates of one queue depend on each other."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from daceopt.distributed.search.backtracking import BacktrackingSearch, SearchEffort
from daceopt.distributed.search.fusion_state import FusionProblem, Move
from daceopt.errors import DaceoptError, RunError

Starts = Sequence[Sequence[Move]]


@dataclass(frozen=True)
class SeedOutcome:
    """The ``moves`` to the best state of one seed and its ``cost``; ``evaluated`` candidates, and whether it ended by
    itself."""

    cost: float
    moves: tuple[Move, ...]
    evaluated: int
    exhausted: bool


@dataclass(frozen=True)
class SeededSearch:
    """Seeds ``effort.seed`` and those that follow. Each writes a file of its own to go on from: ``resume``, and that
    with the number of the seed behind it. Deterministic where each seed is."""

    problem: FusionProblem
    starts: Starts
    effort: SearchEffort
    resume: Path | None = None

    def run(self, seeds: int, seconds: float | None = None) -> list[SeedOutcome]:
        """What came of each seed, of which the first is searched in this process. Raises RunError where another process
        ends without an answer, and DaceoptError where it has an error."""
        if seeds < 1:
            raise DaceoptError(f"{seeds} processes; expected one or more")
        if seeds > 1 and "fork" not in multiprocessing.get_all_start_methods():
            raise DaceoptError("this system cannot fork a search; expected one process")
        others = [self._fork(k, seconds) for k in range(1, seeds)]
        try:
            return [self._search(0, seconds), *(_answer(*other) for other in others)]
        finally:
            for process, _ in others:
                process.kill()
                process.join()

    def _search(self, k: int, seconds: float | None) -> SeedOutcome:
        search = BacktrackingSearch(self.problem, self.starts, replace(self.effort, seed=self.effort.seed + k))
        path = self.resume if self.resume is None or not k else self.resume.with_name(f"{self.resume.name}.{k}")
        if path is not None and path.exists():
            search.restore(path)
        search.run(seconds=seconds)
        if path is not None:
            search.save(path)
        return SeedOutcome(search.cost, search.best_moves, search.evaluated, search.exhausted)

    def _fork(self, k: int, seconds: float | None) -> tuple[Any, Any]:
        """A process that has all that is known so far: what keeps kernels apart cannot be pickled."""
        context: Any = multiprocessing.get_context("fork")
        ours, its = context.Pipe(duplex=False)
        process = context.Process(target=self._child, args=(k, seconds, its), daemon=True)
        process.start()
        its.close()
        return process, ours

    def _child(self, k: int, seconds: float | None, answer: Any) -> None:
        import torch

        torch.set_num_threads(1)  # threads of the parent are not here
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends; progress is that of the first
        try:
            answer.send(self._search(k, seconds))
        except DaceoptError as error:
            answer.send(error)


def _answer(process: Any, pipe: Any) -> SeedOutcome:
    try:
        answer = pipe.recv()
    except EOFError:
        process.join()
        raise RunError(f"a process of the search ended with {process.exitcode}, and no answer") from None
    if isinstance(answer, DaceoptError):
        raise answer
    outcome: SeedOutcome = answer
    return outcome
