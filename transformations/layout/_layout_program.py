"""Which of two layouts each array gets, so that the network takes the least time: an integer program.

Layouts of arrays are binary, as is the loop along which each kernel walks memory; whether an access goes along it
follows. With two layouts the program is a minimum cut, so that its relaxation is whole already and it is solved
at once, also for whole networks (Ivanov et al., Data movement is all you need, MLSys 2021, choose layouts by shortest
paths, one operator after another).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daceopt.passes.integer_program import solver

Layout = int  # 0: the first of an array's two layouts, 1: the second


@dataclass(frozen=True)
class Walked:
    """An access of a kernel: ``loops`` has the loop along which the array's elements lie side by side, in each layout.
    Where the kernel walks memory along another loop it takes ``seconds`` longer."""

    array: str
    loops: tuple[Hashable, Hashable]
    seconds: float


@dataclass
class LayoutProblem:
    """``cost``: of the arrays that may have either layout, the seconds that the second takes more than the first,
    whoever uses them; others have the first. ``walks``: the accesses of each kernel."""

    cost: dict[str, float] = field(default_factory=dict)
    walks: list[list[Walked]] = field(default_factory=list)

    def seconds(self, second: frozenset[str]) -> float:
        """What is lost where the arrays ``second`` have their second layout, and all others their first."""
        return sum(self.cost[a] for a in second) + sum(_crossed(walk, second) for walk in self.walks)

    def solve(self) -> frozenset[str]:
        """The arrays that get their second layout."""
        return _Columns(self).solution() if self.cost else frozenset()


def _crossed(walk: Sequence[Walked], second: frozenset[str]) -> float:
    """What a kernel loses along its best loop."""
    wanted: dict[Hashable, float] = {}
    for access in walk:
        loop = access.loops[access.array in second]
        wanted[loop] = wanted.get(loop, 0.0) + access.seconds
    return sum(wanted.values()) - max(wanted.values(), default=0.0)


class _Columns:
    """Columns: the layout of each array, the loop of each kernel, and which accesses are granted, in each layout:
    those whose conditions, which are columns, allow it."""

    def __init__(self, problem: LayoutProblem):
        self._gains: list[float] = []
        self._rows: list[tuple[float, dict[int, float]]] = []  # (upper bound, column -> factor)
        self._layout = {a: self._column(-c) for a, c in problem.cost.items()}
        self._binary = len(self._gains)
        for walk in problem.walks:
            self._walk(walk)

    def _column(self, gain: float) -> int:
        self._gains.append(gain)
        return len(self._gains) - 1

    def _grant(self, seconds: float, loop: int, array: str = "", layout: Layout = 0) -> None:
        """What is saved along ``loop``, where ``array`` has ``layout``."""
        if array not in self._layout and layout == 1:
            return
        column = self._column(seconds)
        if array in self._layout:  # granted <= layout, or <= 1 - layout
            self._rows.append((1.0 - layout, {column: 1.0, self._layout[array]: 1.0 - 2.0 * layout}))
        self._rows.append((0.0, {column: 1.0, loop: -1.0}))

    def _walk(self, walk: Sequence[Walked]) -> None:
        loops = {loop: self._column(0.0) for access in walk for loop in access.loops}
        self._rows.append((1.0, dict.fromkeys(loops.values(), 1.0)))
        for access in walk:
            if access.loops[0] == access.loops[1]:
                self._grant(access.seconds, loops[access.loops[0]])
                continue
            for layout, loop in enumerate(access.loops):
                self._grant(access.seconds, loops[loop], access.array, layout)

    def solution(self) -> frozenset[str]:
        highs = solver("leave the step out")
        count, gains = len(self._gains), np.array(self._gains)
        highs.addVars(count, np.zeros(count), np.ones(count))
        scale = max(float(np.abs(gains).max()), 1e-12)
        highs.changeColsCost(count, np.arange(count, dtype=np.int32), -gains / scale)
        integer = np.full(self._binary, int(_integer()), dtype=np.uint8)
        highs.changeColsIntegrality(self._binary, np.arange(self._binary, dtype=np.int32), integer)
        upper = np.array([bound for bound, _ in self._rows])
        lengths = [len(terms) for _, terms in self._rows]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32)
        columns = np.array([c for _, terms in self._rows for c in terms], dtype=np.int32)
        factors = np.array([f for _, terms in self._rows for f in terms.values()])
        low = np.full(len(upper), -np.inf)
        highs.addRows(len(upper), low, upper, len(columns), starts, columns, factors)
        highs.run()
        values: Any = highs.getSolution().col_value
        return frozenset(a for a, column in self._layout.items() if values[column] > 0.5)


def _integer() -> Any:
    import highspy

    return highspy.HighsVarType.kInteger.value
