"""Which of its layouts each array gets, so that the network takes the least time: an integer program.

Layouts of arrays are binary columns. How a node works (the loop along which a kernel walks memory, the layout in which
a library convolves) follows from them, as does whether an access suits that. With two layouts the program is a minimum
cut, so that its relaxation is whole already; with three it is solved in bounded time, and what is found is never worse
than one layout for all arrays (Ivanov et al., Data movement is all you need, MLSys 2021, choose layouts by shortest
paths, one operator after another).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daceopt.passes.integer_program import solver

Layout = int  # position among the layouts of an array
Choice = dict[str, Layout]  # array -> its layout; others have their first
_NOISE = 0.1  # of the time of one call: its measurements differ by as much between quiet and busy minutes
_PATIENCE = 5.0  # seconds


@dataclass(frozen=True)
class Walked:
    """An access of a node: ``modes`` has the mode of the node that suits it, in each layout of the array: the loop
    along which elements lie side by side, or the layout in which a library works. In other modes it takes ``seconds``
    longer."""

    array: str
    modes: tuple[Hashable, ...]
    seconds: float


@dataclass
class NodeAccesses:
    """What a node accesses, and the seconds that it takes in each mode if all accesses suit it: 0 where nothing is
    said."""

    accesses: Sequence[Walked]
    own: Mapping[Hashable, float] = field(default_factory=dict)

    def modes(self) -> dict[Hashable, float]:
        """The modes, with their seconds: those that are named, or else those of the accesses."""
        return dict(self.own) or dict.fromkeys((m for a in self.accesses for m in a.modes), 0.0)

    def seconds(self, choice: Choice) -> dict[Hashable, float]:
        """Of each mode."""
        seconds_of = self.modes()
        for access in self.accesses:
            suits = access.modes[choice.get(access.array, 0)]
            for mode in seconds_of:
                seconds_of[mode] += access.seconds * (mode != suits)
        return seconds_of

    def best(self, choice: Choice) -> tuple[Hashable, float]:
        """The fastest mode, and its seconds."""
        return min(self.seconds(choice).items(), key=lambda pair: pair[1], default=(None, 0.0))

    def settle(self, choice: Choice) -> Hashable:
        """The mode that all accesses suit, unless the fastest saves more than a measurement's noise; else that one."""
        seconds, (fastest, least) = self.seconds(choice), self.best(choice)
        modes = {access.modes[choice.get(access.array, 0)] for access in self.accesses}
        mode = modes.pop() if len(modes) == 1 else fastest
        return mode if mode in seconds and least >= (1 - _NOISE) * seconds[mode] else fastest


@dataclass
class LayoutProblem:
    """``cost``: of the arrays that may have several layouts, the seconds that each takes, whoever uses it; the first is
    0. ``walks``: what each node accesses."""

    cost: dict[str, tuple[float, ...]] = field(default_factory=dict)
    walks: list[NodeAccesses] = field(default_factory=list)

    def seconds(self, choice: Choice) -> float:
        """What is lost in these layouts."""
        arrays = sum(self.cost[a][layout] for a, layout in choice.items())
        return arrays + sum(walk.best(choice)[1] for walk in self.walks)

    def solve(self) -> Choice:
        """The layout of each array that may have several."""
        if not self.cost:
            return {}
        choice = _Columns(self).solution()
        if all(len(costs) == 2 for costs in self.cost.values()):
            return choice
        return min((choice, *self.uniform()), key=self.seconds)

    def uniform(self) -> Iterator[Choice]:
        """The choices of one layout for all arrays that have it; one of nothing where no array has several."""
        for layout in range(max(map(len, self.cost.values()), default=1)):
            yield {a: layout if layout < len(costs) else 0 for a, costs in self.cost.items()}


class _Columns:
    """Columns: the layouts of each array but its first, the modes of each node, and which accesses suit their mode:
    those whose conditions, which are columns, allow it."""

    def __init__(self, problem: LayoutProblem):
        self._gains: list[float] = []
        self._rows: list[tuple[float, dict[int, float]]] = []  # (upper bound, column -> factor)
        self._layouts = {a: [self._column(-c) for c in costs[1:]] for a, costs in problem.cost.items()}
        self._binary = len(self._gains)
        for columns in self._layouts.values():
            if len(columns) > 1:
                self._rows.append((1.0, dict.fromkeys(columns, 1.0)))
        for walk in problem.walks:
            self._walk(walk)

    def _column(self, gain: float) -> int:
        self._gains.append(gain)
        return len(self._gains) - 1

    def _grant(self, access: Walked, mode: Hashable, column_of_mode: int) -> None:
        """What is saved in ``mode``, where the array has a layout that suits it."""
        others = self._layouts.get(access.array, [])
        suiting = [mode == m for m in access.modes[: len(others) + 1]]
        if not any(suiting):
            return
        column = self._column(access.seconds)
        if not all(suiting):  # granted <= the sum of the suiting layouts, of which the first is 1 - the others
            sign, chosen = (1.0, False) if suiting[0] else (-1.0, True)
            coefficients = {c: sign for c, suits in zip(others, suiting[1:]) if suits == chosen}
            self._rows.append((float(suiting[0]), {column: 1.0, **coefficients}))
        self._rows.append((0.0, {column: 1.0, column_of_mode: -1.0}))

    def _walk(self, walk: NodeAccesses) -> None:
        seconds = walk.modes()
        most = max(seconds.values(), default=0.0)
        modes = {mode: self._column(most - own) for mode, own in seconds.items()}
        self._rows.append((1.0, dict.fromkeys(modes.values(), 1.0)))
        for access in walk.accesses:
            for mode, column in modes.items():
                if mode in access.modes:
                    self._grant(access, mode, column)

    def solution(self) -> Choice:
        highs = solver("leave the step out", time_limit=_PATIENCE, mip_rel_gap=1e-7)
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
        return {a: self._choose(values, columns) for a, columns in self._layouts.items()}

    @staticmethod
    def _choose(values: Sequence[float], columns: Sequence[int]) -> Layout:
        """The first layout, where nothing was found in time."""
        return next((k for k, c in enumerate(columns, start=1) if len(values) > c and values[c] > 0.5), 0)


def _integer() -> Any:
    import highspy

    return highspy.HighsVarType.kInteger.value
