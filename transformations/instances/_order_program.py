"""The order of instances of which the fewest bytes are alive, as an integer program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, gcd
from typing import Any

from daceopt.passes.integer_program import solver
from daceopt.transformations.instances._units import Units


@dataclass(frozen=True)
class Solution:
    """An order, the most bytes alive in it, and the fewest that any order can have, as far as that was proved."""

    order: list[int]
    peak: int
    bound: int

    @property
    def is_optimal(self) -> bool:
        return self.peak <= self.bound


def solve(units: Units, start: Sequence[int], seconds: float, variables: int) -> Solution:
    """The best order that HiGHS finds in ``seconds``, from ``start`` on, or ``start``.

    Binary ``done[u, t]``: unit u is one of the first t + 1. ``alive[b, t]``: buffer b has been touched by then, and not
    by all for the last time before; ``peak`` is no less than the sizes of what is alive at any t with what the unit at
    t needs itself. Programs of more than ``variables`` variables are not solved: their bound is that of a single unit.
    Raises DaceoptError where HiGHS is not installed.
    """
    first = units.peak(start)
    trivial = max(units.weights, default=0)
    count = units.count
    if first <= trivial or count < 2 or count * (count + len(units.sizes)) > variables:
        return Solution(list(start), first, min(trivial, first))
    program = _Program(units, seconds)
    order, bound = program.run(start)
    peak = units.peak(order)
    best, most = (order, peak) if peak < first else (list(start), first)
    return Solution(best, most, min(most, max(trivial, bound)))


class _Program:
    """One integer program; bytes are counted in units of the largest size, so that numbers are of order one."""

    def __init__(self, units: Units, seconds: float):
        self._units, self._highs = units, solver("choose another order", time_limit=seconds)
        self._scale = max(units.weights)
        self._range = range(units.count)
        self._done = [[self._binary() for _ in self._range] for _ in self._range]
        self._alive = {name: [self._share() for _ in self._range] for name in units.sizes}
        self._peak = self._highs.addVariable(lb=0)
        self._order()
        self._liveness()

    def _binary(self) -> Any:
        return self._highs.addBinary()

    def _share(self) -> Any:
        return self._highs.addVariable(lb=0, ub=1)

    def _order(self) -> None:
        """One more unit runs at each step, what it reads runs before, and nothing is undone."""
        highs, ran_by = self._highs, self._done
        for t in self._range:
            highs.addConstr(sum(ran_by[u][t] for u in self._range) == t + 1)
        for row in ran_by:
            for before, after in pairwise(row):
                highs.addConstr(before <= after)
        for u, readers in enumerate(self._units.after):
            for reader in readers:
                highs.addConstr(ran_by[reader][0] == 0)
                for t in self._range[1:]:
                    highs.addConstr(ran_by[reader][t] <= ran_by[u][t - 1])

    def _liveness(self) -> None:
        units, ran_by = self._units, self._done
        for name, users in units.users.items():
            makers = [u for u in users if not any(u in units.after[w] for w in users)]
            for t, alive in enumerate(self._alive[name]):
                for maker in makers:
                    for user in users:
                        last = ran_by[user][t - 1] if t else 0
                        self._highs.addConstr(alive >= ran_by[maker][t] - last)
        for t in self._range:
            shared = sum(units.sizes[n] / self._scale * row[t] for n, row in self._alive.items())
            own = sum(
                units.inner[u] / self._scale * (ran_by[u][t] - (ran_by[u][t - 1] if t else 0))
                for u in self._range
                if units.inner[u]
            )
            self._highs.addConstr(self._peak >= shared + own)

    def run(self, start: Sequence[int]) -> tuple[list[int], int]:
        """An order (``start`` where none was found), and bytes below which no order stays."""
        self._guess(start)
        self._highs.minimize(self._peak)
        info = self._highs.getInfo()
        bound = max(info.mip_dual_bound, 0.0) * self._scale
        proved = self._round(bound) if bound < float("inf") else 0
        if info.primal_solution_status != _FEASIBLE:
            return list(start), proved
        values = self._highs.getSolution().col_value
        ran = [sum(values[variable.index] for variable in row) for row in self._done]
        return sorted(self._range, key=lambda u: -ran[u]), proved

    def _round(self, bound: float) -> int:
        """What sums of sizes can be, at ``bound`` or just above; the solver's numbers are right to six digits."""
        step = gcd(*self._units.sizes.values(), *self._units.inner)
        return max(ceil((bound - _TOLERANCE * self._scale) / step) * step, 0)

    def _guess(self, start: Sequence[int]) -> None:
        """Begin with the order ``start``."""
        import highspy

        solution = highspy.HighsSolution()
        values = [0.0] * self._highs.getNumCol()
        for position, u in enumerate(start):
            for t in self._range[position:]:
                values[self._done[u][t].index] = 1.0
        place = {u: position for position, u in enumerate(start)}
        for name, users in self._units.users.items():
            positions = [place[u] for u in users]
            for t in range(min(positions), max(positions) + 1):
                values[self._alive[name][t].index] = 1.0
        values[self._peak.index] = self._units.peak(start) / self._scale
        solution.col_value = values
        self._highs.setSolution(solution)


_TOLERANCE = 1e-6
_FEASIBLE = 2  # of HiGHS's solution statuses
