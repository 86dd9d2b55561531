"""Backtracking search for kernels and buckets that make a step short (DisCo, algorithm 1)."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from pathlib import Path
from typing import Any

from daceopt.distributed.search.fusion_state import METHODS, FusionProblem, FusionState, Method, Move
from daceopt.errors import DaceoptError
from daceopt.progress import ProgressCounter, phase

_FORMAT = 1
_TRIES = 4  # random choices for each application: most edges end inside of a kernel sooner or later
_WIDTH = 48  # candidates that wait, the best ones: memory, and a file to resume from that stays small
_PARTS = 100  # of the time or the patience that whoever watches sees pass


@dataclass(frozen=True)
class SearchEffort:
    """``alpha``: candidates up to so many times the best cost are kept; ``beta``: applications of a method at most
    between two evaluations; ``patience``: evaluations in turn that find nothing better; ``methods``: those in use."""

    alpha: float = 1.05
    beta: int = 10
    patience: int = 1000
    seed: int = 0
    methods: tuple[Method, ...] = METHODS

    def __post_init__(self) -> None:
        if not self.alpha >= 1 or self.beta < 1 or self.patience < 1:
            raise DaceoptError(f"{self}: expected alpha, beta and patience of 1 or more")


@dataclass
class _Candidate:
    """A state, and the moves that lead to it from its parent."""

    parent: int | None
    moves: tuple[Move, ...]
    cost: float
    state: FusionState


@dataclass
class _Island:
    """Algorithm 1 from one state: what waits (cost, candidate), the best candidate, evaluations in turn without a
    better one."""

    best: int
    queue: list[tuple[float, int]] = field(default_factory=list)
    unchanged: int = 0


class BacktrackingSearch:
    """Algorithm 1 from several states in turn: nothing fused, and what simple rules make (``starts``), so that what is
    found is never worse than they are. Each has a queue and a best cost of its own: next to what a rule made at once,
    the first steps away from nothing fused would all be given up.

    Where a queue is empty the best candidate goes on; what ends a search is its patience.

    Deterministic: the same problem, starts, effort and number of steps give the same result, also where the search was
    written to a file in between. Times of kernels come from the problem's model, which must not change meanwhile.
    """

    def __init__(
        self, problem: FusionProblem, starts: Iterable[Sequence[Move]] = (), effort: SearchEffort = SearchEffort()
    ):
        self.problem, self.effort = problem, effort
        self.steps = self.evaluated = 0
        self._random = random.Random(effort.seed)
        self._known: dict[int, _Candidate] = {}
        self._next = 0
        self._islands = [_Island(self._add(None, (), FusionState(problem)))]
        for start in starts:
            state = self._known[0].state.copy()
            possible = tuple(move for move in start if state.apply(move) is None)
            if all(possible != self._known[island.best].moves for island in self._islands):
                self._islands.append(_Island(self._add(0, possible, state)))
        for island in self._islands:
            self._enqueue(island, island.best)

    # ---------------------------------------------------------------- results

    @property
    def best(self) -> FusionState:
        """The state of least cost so far."""
        return self._best.state

    @property
    def cost(self) -> float:
        """Its seconds."""
        return self._best.cost

    @property
    def best_moves(self) -> tuple[Move, ...]:
        """Those that lead to it from nothing fused."""
        return self._moves_of(self._best)

    def best_of_starts(self) -> list[tuple[Move, ...]]:
        """The moves to the best state that was found from each start, the one of least cost first."""
        candidates = (self._known[island.best] for island in self._islands)
        return [self._moves_of(c) for c in sorted(candidates, key=lambda c: c.cost)]

    def _moves_of(self, candidate: _Candidate) -> tuple[Move, ...]:
        moves = candidate.moves
        while candidate.parent is not None:
            candidate = self._known[candidate.parent]
            moves = candidate.moves + moves
        return moves

    @property
    def _best(self) -> _Candidate:
        return min((self._known[island.best] for island in self._islands), key=lambda c: c.cost)

    @property
    def exhausted(self) -> bool:
        """Was nothing better found, from any start, for as long as patience lasts?"""
        return not self._live()

    def _live(self) -> list[_Island]:
        return [island for island in self._islands if island.unchanged < self.effort.patience]

    # ---------------------------------------------------------------- the algorithm

    def run(self, seconds: float | None = None, steps: int | None = None) -> FusionState:
        """Search on until it is exhausted, for so many seconds or steps more at most."""
        start, last = time.monotonic(), None if steps is None else self.steps + steps
        share, shown = 0.0, 0
        with phase("search"), ProgressCounter("search", _PARTS) as counter:
            while not self.exhausted and share < 1 and (last is None or self.steps < last):
                self._step()
                if seconds is not None:
                    share = (time.monotonic() - start) / max(seconds, 1e-9)
                waited = min(island.unchanged for island in self._islands) / self.effort.patience
                while shown < int(_PARTS * min(1, max(share, waited))):
                    shown += 1
                    counter.advance(f"best {1e3 * self.cost:.3f} ms after {self.evaluated} candidates")
        return self.best

    def _step(self) -> None:
        live = self._live()
        island = live[self.steps % len(live)]
        self.steps += 1
        if not island.queue:
            self._enqueue(island, island.best)
        parent = heappop(island.queue)[1]
        for method in self.effort.methods:
            state, moves = self._apply(self._known[parent].state, method)
            if moves:
                self._consider(island, parent, moves, state)
            else:
                island.unchanged += 1
        self._forget(island)

    def _apply(self, state: FusionState, method: Method) -> tuple[FusionState, tuple[Move, ...]]:
        """RandomApply: up to beta times, what is not valid left out."""
        state, moves = state.copy(), []
        for _ in range(self._random.randint(1, self.effort.beta)):
            for _ in range(_TRIES):
                move = self._draw(state, method)
                if move is not None and state.apply(move) is None:
                    moves.append(move)
                    break
        return state, tuple(moves)

    def _draw(self, state: FusionState, method: Method) -> Move | None:
        if method != "combine":
            edges = self.problem.graph.edges
            return Move(method, *self._random.choice(edges)) if edges else None
        buckets = state.packed.buckets
        if len(buckets) < 2:
            return None
        k = self._random.randrange(len(buckets) - 1)  # neighbours are produced one after the other
        order = state.ready_order()
        return Move(method, order[k][0], order[k + 1][0])

    # ---------------------------------------------------------------- candidates

    def _consider(self, island: _Island, parent: int, moves: tuple[Move, ...], state: FusionState) -> None:
        self.evaluated += 1
        number = self._add(parent, moves, state)
        cost, best = self._known[number].cost, self._known[island.best].cost
        if cost < best:
            island.best, island.unchanged = number, 0
        else:
            island.unchanged += 1
        if cost <= self.effort.alpha * min(cost, best):
            self._enqueue(island, number)

    def _add(self, parent: int | None, moves: tuple[Move, ...], state: FusionState) -> int:
        number, self._next = self._next, self._next + 1
        self._known[number] = _Candidate(parent, moves, state.time.seconds, state)
        return number

    def _enqueue(self, island: _Island, number: int) -> None:
        heappush(island.queue, (self._known[number].cost, number))

    def _forget(self, island: _Island) -> None:
        """Keep the candidates that wait, the best ones of them, and the best of all; moves of others join those of
        their descendants."""
        if len(island.queue) > 2 * _WIDTH:
            island.queue = nsmallest(_WIDTH, island.queue)  # sorted, so a heap
        needed = (
            {number for one in self._islands for _, number in one.queue} | {one.best for one in self._islands} | {0}
        )
        for number in needed - {0}:
            candidate = self._known[number]
            while candidate.parent is not None and candidate.parent not in needed:
                above = self._known[candidate.parent]
                candidate.parent, candidate.moves = above.parent, above.moves + candidate.moves
        self._known = {number: c for number, c in self._known.items() if number in needed}

    # ---------------------------------------------------------------- to and from a file

    def save(self, path: Path) -> None:
        """Write all that is needed to go on later, as JSON; whole or not at all."""
        candidates = {n: [c.parent, [list(m) for m in c.moves]] for n, c in sorted(self._known.items())}
        version, numbers, gauss = self._random.getstate()
        content = {
            "format": _FORMAT,
            "problem": self._identity(),
            "counts": [self.steps, self.evaluated, self._next],
            "islands": [[island.best, sorted(island.queue), island.unchanged] for island in self._islands],
            "known": candidates,
            "random": [version, list(numbers), gauss],
        }
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(content), encoding="utf-8")
        part.replace(path)

    def restore(self, path: Path) -> None:
        """Go on from what ``save`` wrote. Raises DaceoptError where that was a search of something else."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            self._restore(content, path)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DaceoptError(f"{path} is no state of a search: {type(error).__name__}: {error}") from error

    def _restore(self, content: dict[str, Any], path: Path) -> None:
        own = self._identity()
        differ = [k for k in own if content["problem"].get(k) != own[k]]
        if content["format"] != _FORMAT or differ:
            raise DaceoptError(f"{path} is the state of another search: {', '.join(differ) or 'format'} differ")
        candidates = {0: self._known[0]}
        for text, (parent, moves) in content["known"].items():
            if parent is None:
                continue
            above, own_moves = candidates[parent], tuple(Move(*m) for m in moves)
            state = above.state.copy()
            for move in own_moves:
                reason = state.apply(move)
                if reason is not None:
                    raise DaceoptError(f"{path}: {move} is not possible: {reason}")
            candidates[int(text)] = _Candidate(parent, own_moves, state.time.seconds, state)
        islands = [_Island(*parts) for parts in content["islands"]]
        if len(islands) != len(self._islands):
            raise DaceoptError(f"{path} is the state of a search from {len(islands)} starts, not {len(self._islands)}")
        for island in islands:
            _ = candidates[island.best]
            island.queue = [(candidates[number].cost, number) for _, number in island.queue]
        self._known, self._islands = candidates, islands
        self.steps, self.evaluated, self._next = content["counts"]
        version, numbers, gauss = content["random"]
        self._random.setstate((version, tuple(numbers), gauss))

    def _identity(self) -> dict[str, Any]:
        effort, reduction = self.effort, self.problem.reduction
        return {
            "graph": self.problem.graph.fingerprint,
            "alpha, beta, patience": [effort.alpha, effort.beta, effort.patience],
            "seed": effort.seed,
            "methods": list(effort.methods),
            "reduction": [reduction.world, reduction.per_byte, reduction.overhead],
            "slowdowns": list(self.problem.simulator.slowdowns),
        }
