"""What to store within a budget, as an integer program: the best choice, or how far from it the one found may be.

After Jain et al., Checkmate: Breaking the memory wall with optimal tensor rematerialization (MLSys 2020), section 4;
here every node runs again at most once, and just before it is needed. The program counts no byte that a choice would
not take (it leaves out what is read by way of fused kernels), so the seconds it proves hold for all choices.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from daceopt import highs
from daceopt.autodiff.storage_problem import StorageProblem

MOST_VARIABLES = 60_000  # of a program that is asked for
FEW_VARIABLES = 6_000  # of one that is solved in a second or so, unasked
_OPTIMAL_GAP = 1e-3


class StorageProgram:
    """Columns: ``stored`` of each value, binary; ``ran`` of a computation by a stage; ``alive`` of a value at a stage.

    A stage is a node of the backward that reads values that are computed. What is stored settles all others, which need
    not be integers.
    """

    def __init__(self, problem: StorageProblem):
        self._problem = problem
        self._stages = [t for t, g in enumerate(problem.backward) if any(problem.values[v].makers for v in g.reads)]
        self._computed = [v for v, value in enumerate(problem.values) if value.makers]
        self._scale = max((c.seconds for c in problem.forward), default=0.0) or 1.0
        self._stored: dict[int, int] = {}
        self._ran: dict[tuple[int, int], int] = {}
        self._alive: dict[tuple[int, int], int] = {}

    @property
    def size(self) -> int:
        """About how many variables there are."""
        return len(self._computed) + len(self._stages) * (len(self._problem.forward) + len(self._computed))

    def solve(self, start: frozenset[int], deadline: float) -> tuple[frozenset[int] | None, float]:
        """What to store, None where nothing was found by ``deadline``; and seconds below which no choice stays.

        Raises ImportError where HiGHS is not installed.
        """
        self._highs: Any = highs.new()
        options = {"threads": 1, "random_seed": 0, "mip_rel_gap": _OPTIMAL_GAP}
        for option, value in options.items():
            self._highs.setOptionValue(option, value)
        self._columns()
        self._needs()
        self._lives()
        self._memory_of_backward()
        self._memory_of_forward()
        self._guess(start)
        self._highs.setOptionValue("time_limit", max(deadline - time.monotonic(), 0.1))
        self._highs.run()
        info = self._highs.getInfo()
        bound = info.mip_dual_bound * self._scale if np.isfinite(info.mip_dual_bound) else 0.0
        if info.primal_solution_status != 2:
            return None, max(bound, 0.0)
        values = self._highs.getSolution().col_value
        return frozenset(v for v, column in self._stored.items() if values[column] > 0.5), max(bound, 0.0)

    # ---------------------------------------------------------------- columns

    def _columns(self) -> None:
        import highspy

        problem, free = self._problem, set(self._problem.free)
        last = len(self._stages) - 1
        for v in self._computed:
            high = v in problem.fixed or v in free
            self._stored[v] = self._column(problem.values[v].writing / self._scale if v in free else 0.0, high=high)
            self._highs.changeColIntegrality(self._stored[v], highspy.HighsVarType.kInteger)
        for t in range(len(self._stages)):
            for k, computation in enumerate(problem.forward):
                self._ran[k, t] = self._column(computation.seconds / self._scale if t == last else 0.0)
            for v in self._computed:
                if problem.values[v].again:
                    self._alive[v, t] = self._column(0.0)

    def _column(self, cost: float, high: float = 1) -> int:
        number = int(self._highs.getNumCol())
        self._highs.addCol(cost, 0, high, 0, [], [])
        return number

    def _at_least(self, low: float, *terms: tuple[int, float]) -> None:
        columns, factors = zip(*terms)
        self._highs.addRow(low, self._infinite(), len(columns), np.array(columns), np.array(factors, dtype=float))

    def _infinite(self) -> float:
        return float(self._highs.getInfinity())

    # ---------------------------------------------------------------- rows

    def _needs(self) -> None:
        """What is read is stored, or has run again; and so has what that reads."""
        for t, place in enumerate(self._stages):
            for v in self._problem.backward[place].reads:
                for again in self._again(v, t):
                    self._at_least(1, (self._stored[v], 1), *again)
            for j, computation in enumerate(self._problem.forward):
                for v in computation.reads:
                    for again in self._again(v, t):
                        self._at_least(0, (self._stored[v], 1), *again, (self._ran[j, t], -1))
                if t:
                    self._at_least(0, (self._ran[j, t], 1), (self._ran[j, t - 1], -1))

    def _again(self, v: int, t: int) -> list[list[tuple[int, float]]]:
        """What may stand in for storing ``v`` at stage ``t``: each of its makers has run again; of what is fixed,
        nothing."""
        makers = self._problem.values[v].makers
        return [[(self._ran[k, t], 1)] for k in makers] if v not in self._problem.fixed else [[] for _ in makers[:1]]

    def _lives(self) -> None:
        """A value that was computed again is alive up to its last reader."""
        readers = self._readers()
        end = len(self._stages) - 1
        for v, own in self._last_stages().items():
            for t in range(len(self._stages)):
                if (v, t) not in self._alive:
                    continue
                for k in self._problem.values[v].makers:
                    here = (self._alive[v, t], 1.0), (self._ran[k, t], -1.0), (self._stored[v], 1.0)
                    if t <= own:
                        self._at_least(0, *here)
                        continue
                    for j in readers.get(v, ()):  # which runs again at a later stage
                        self._at_least(-1, *here, (self._ran[j, end], -1.0), (self._ran[j, t], 1.0))

    def _readers(self) -> dict[int, list[int]]:
        readers: dict[int, list[int]] = {}
        for j, computation in enumerate(self._problem.forward):
            for v in computation.reads:
                readers.setdefault(v, []).append(j)
        return readers

    def _last_stages(self) -> dict[int, int]:
        """Value -> the last stage at which it is surely there if it was computed again; -1 for none."""
        last = dict.fromkeys(self._computed, -1)
        for t, place in enumerate(self._stages):
            node = self._problem.backward[place]
            last |= {v: t - node.in_place for v in node.reads if v in last}
        return last

    def _memory_of_backward(self) -> None:
        """At each stage no more is alive than the budget."""
        problem, last = self._problem, self._last_stages()
        for t, place in enumerate(self._stages):
            there = [v for v in self._computed if not problem.joined or t <= last[v]]
            self._within(
                problem.budget - problem.backward[place].live,
                ((self._stored[v], problem.values[v].bytes) for v in there),
                ((self._alive[v, t], problem.values[v].again) for v in self._computed if (v, t) in self._alive),
            )

    def _memory_of_forward(self) -> None:
        """The same at each node of the forward, where what is stored for later takes the place of what is alive."""
        problem = self._problem
        for i in range(len(problem.forward)):
            alive = [v for v in self._computed if problem.birth[v] <= i <= problem.last_forward_read.get(v, -1)]
            present = [v for v in self._computed if not problem.joined or problem.birth[v] <= i]
            self._within(
                problem.budget - sum(problem.values[v].forward for v in alive),
                ((self._stored[v], problem.values[v].bytes) for v in present),
                ((self._stored[v], -problem.values[v].forward) for v in alive),
            )

    def _within(self, room: int, *terms: Iterable[tuple[int, int]]) -> None:
        total: dict[int, float] = {}
        for column, size in (term for group in terms for term in group):
            total[column] = total.get(column, 0.0) - size / max(self._problem.budget, 1)
        parts = [(column, size) for column, size in total.items() if size]
        if parts:
            self._at_least(-room / max(self._problem.budget, 1), *parts)

    def _guess(self, start: frozenset[int]) -> None:
        columns = np.array(list(self._stored.values()), dtype=np.int32)
        guess = np.array([float(v in start or v in self._problem.fixed) for v in self._stored])
        self._highs.setSolution(len(columns), columns, guess)
