"""A search for the fastest way to run a program, by running it: recipes, PyTorch itself, and changes of a recipe."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from daceopt import progress
from daceopt.errors import DaceoptError, WorkerError
from daceopt.passes.recipe import Recipe
from daceopt.programs.tuning.result import EAGER, TuningRecord, TuningResult, TuningTrial, alternatives
from daceopt.programs.tuning.variations import Variation, variations

logger = logging.getLogger("daceopt.dispatch")

_MARGIN = 0.03  # the share by which a way must be faster, twice: less is noise
_WINS = 0.8  # of the rounds of a race, in which it must be: by chance it is in one race of fifty
ROUNDS, SECONDS = 9, 0.15  # of a race at least, under the clock for each contender
_FIRST, _BEST, _OWN = "first", "best", "own"


@dataclass(frozen=True)
class Contender:
    """A way to run a program, ready to run: one ``call``, and the ``code`` that it runs, equal where the code is; empty
    where nobody knows."""

    call: Callable[[], object]
    code: str = ""


Make = Callable[[Recipe], Contender]
T = TypeVar("T")


class Searchers:
    """The processes that search, each in the same way: this one alone. Several have to agree on what decides."""

    def agree(self, value: T) -> T:
        """What the first of them says in this place."""
        return value

    def attempt(self, make: Callable[[], T]) -> T:
        """What ``make`` returns. Raises DaceoptError where it does so in one of them."""
        return make()

    def sample(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Seconds of the calls, round by round, of the slowest of them: see ``cost.measure.sample``."""
        from daceopt.cost.measure import sample

        return sample(calls, seconds=SECONDS, warmup=1, at_least=ROUNDS)


@dataclass(frozen=True)
class _Way:
    """A way to run a program: a recipe with ``changes``; without a ``recipe`` it is PyTorch itself."""

    recipe: Recipe | None
    changes: tuple[Variation, ...] = ()

    @property
    def name(self) -> str:
        return EAGER if self.recipe is None else self.recipe.name

    @property
    def text(self) -> str:
        return ", ".join([self.name, *(v.text for v in self.changes)])

    def with_change(self, variation: Variation) -> _Way | None:
        """With one more change; None where a change before it has taken its place."""
        if self.recipe is None:
            return None
        try:
            return _Way(variation.on(self.recipe), (*self.changes, variation))
        except DaceoptError:
            return None


class Search:
    """Tries the recipes that ``recipe`` is a choice of, ``eager`` PyTorch where it is given, and then changes of the
    fastest, each beside the first recipe and the fastest so far: coordinate descent, deterministic but for the clock.

    ``make`` compiles with a recipe. Nothing is begun that takes longer than what is left of
    ``budget`` seconds, as far as what was tried before tells; the first recipe is always compiled. ``trains``: see
    :func:`~daceopt.programs.tuning.result.alternatives`; ``varies``: whether changes are tried. ``searchers``: who
    searches; ``began``: since when the time runs, None for now. What is returned is as fast as the first recipe, or
    faster.
    """

    def __init__(
        self,
        record: TuningRecord,
        recipe: Recipe,
        make: Make,
        budget: float,
        *,
        eager: Contender | None = None,
        trains: bool | None = None,
        varies: bool = True,
        searchers: Searchers | None = None,
        began: float | None = None,
    ) -> None:
        self._record, self._recipe, self._make, self._budget, self._eager = record, recipe, make, budget, eager
        self._varies, self._searchers = varies, searchers or Searchers()
        self._deadline = (time.perf_counter() if began is None else began) + budget
        self._recipes = alternatives(recipe, trains)
        self._speedup = 1.0

    def find(self) -> TuningResult:
        """The fastest way, as it was found before in as many seconds, or to the end; otherwise a search that was ended,
        by the clock or with its process, goes on. Raises what compiling the first recipe raises."""
        result = self._searchers.agree(self._record.result())
        if result is None or (result.untried and self._budget > result.budget):
            result = self._search()
            self._record.keep(result)
        return replace(result, base=self._recipe)

    def _search(self) -> TuningResult:
        start = time.perf_counter()
        first = self._way = _Way(self._recipes[0])
        self._first = self._best = self._searchers.attempt(lambda: self._make(self._recipes[0]))
        self._codes = {self._searchers.agree(self._first.code): 1.0}  # the speedup of each
        self._seconds = statistics.median(self._measure()[_FIRST])
        self._longest = time.perf_counter() - start
        self._trials = [TuningTrial(first.text, 1.0)]
        untried = self._try_all()
        if self._way != first and _ratio(self._measure(), _FIRST, _BEST) < 1:  # what won by chance
            self._way, self._speedup = first, 1.0
        times = self._seconds, self._seconds / self._speedup
        result = TuningResult(self._way.name, self._way.changes, times, tuple(self._trials), untried, self._budget)
        logger.info("%s", result)
        return result

    def _try_all(self) -> int:
        """Try everything while there is time; how many ways were left then."""
        ways = [*map(_Way, self._recipes[1:]), *([_Way(None)] if self._eager is not None else [])]
        total = len(ways) + (len(variations(self._recipes[0])) if self._varies else 0)
        with progress.parts(total, "ways to run it") as counter:
            for position, way in enumerate(ways):
                if not self._attempt(way):
                    return total - position
                counter.advance(f"ways to run it, the best {self._speedup:.2f} x: {self._way.text}")
            changes = [] if self._way.recipe is None or not self._varies else variations(self._way.recipe)
            for position, variation in enumerate(changes):
                changed = self._way.with_change(variation)
                if changed is not None and not self._attempt(changed):
                    return len(changes) - position
                counter.advance(f"ways to run it, the best {self._speedup:.2f} x: {self._way.text}")
        return 0

    def _attempt(self, way: _Way) -> bool:
        """Try a way, unless an earlier search tells that it is not faster; False where there is no time for it."""
        earlier = self._searchers.agree(self._record.speedup(way.text))
        if earlier is not None and earlier < (1 + _MARGIN) * self._speedup:
            self._trials.append(TuningTrial(way.text, earlier))
            return True
        start = time.perf_counter()
        if earlier is None and self._searchers.agree(start + self._longest > self._deadline):
            return False
        trial = TuningTrial(way.text, self._speedup_of(way))
        self._longest = max(self._longest, time.perf_counter() - start)
        self._trials.append(trial)
        self._record.keep_trial(trial)
        return True

    def _speedup_of(self, way: _Way) -> float:
        """Its speedup over the first recipe as measured; 0 where it does not compile, or run."""
        try:
            recipe = way.recipe
            contender = self._eager if recipe is None else self._searchers.attempt(lambda: self._make(recipe))
            if contender is None:
                return 0.0
            code = self._searchers.agree(contender.code)
            if not code or code not in self._codes:
                self._codes[code] = self._race(way, contender)
            return self._codes[code]
        except WorkerError:  # the others are somewhere else by now
            raise
        except DaceoptError as error:
            logger.info("%s does not run: %s", way.text, error)
            return 0.0

    def _race(self, way: _Way, contender: Contender) -> float:
        """Its speedup over the first recipe; it is the best from now on where it is faster twice."""
        for is_last in (False, True):
            samples = self._measure(contender)
            speedup = _ratio(samples, _FIRST, _OWN)
            wins = [own < best for best, own in zip(samples[_BEST], samples[_OWN])]
            if _ratio(samples, _BEST, _OWN) < 1 + _MARGIN or statistics.mean(wins) < _WINS:
                break
            if is_last:
                self._way, self._best, self._speedup = way, contender, speedup
        return speedup

    def _measure(self, contender: Contender | None = None) -> dict[str, list[float]]:
        """Seconds of the first recipe, of the best way, and of ``contender``, round by round."""
        calls = {_FIRST: self._first.call, _BEST: self._best.call}
        if self._best is self._first:
            del calls[_BEST]
        if contender is not None:
            calls[_OWN] = contender.call
        samples = self._searchers.sample(calls)
        return {_BEST: samples[_FIRST], **samples}


def _ratio(samples: Mapping[str, list[float]], over: str, own: str) -> float:
    """How many times as fast ``own`` is as ``over``: the median of the rounds, in which the machine is the same."""
    return statistics.median(a / b for a, b in zip(samples[over], samples[own]))
