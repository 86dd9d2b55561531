"""A search for the fastest way to run a program, by running it: recipes, PyTorch itself, and changes of a recipe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from daceopt import progress
from daceopt.cost.measure import interleave
from daceopt.errors import DaceoptError
from daceopt.passes.recipe import Recipe
from daceopt.programs.tuning.result import EAGER, TuningRecord, TuningResult, TuningTrial, alternatives
from daceopt.programs.tuning.variations import Variation, variations

logger = logging.getLogger("daceopt.dispatch")

_MARGIN = 0.03  # the share by which a way must be faster, twice: less is noise
_ROUND = 0.15  # seconds under the clock for each contender in one round
_FIRST, _BEST, _OWN = "first", "best", "own"

Run = Callable[[], object]


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


def tune(
    record: TuningRecord,
    recipe: Recipe,
    run: Callable[[Recipe], Run],
    budget: float,
    *,
    eager: Run | None = None,
    trains: bool | None = None,
) -> TuningResult:
    """The fastest way as it was found before, in a search of at least ``budget`` seconds or to its end, or as it is
    found now: see :class:`Search`. A search that was ended, by the clock or with its process, goes on."""
    result = record.result()
    if result is None or (result.untried and budget > result.budget):
        result = Search(record, recipe, run, budget, eager=eager, trains=trains).find()
        record.keep(result)
    return replace(result, base=recipe)


class Search:
    """Tries the recipes that ``recipe`` is a choice of, ``eager`` PyTorch where it is given, and then changes of the
    fastest, each beside the first recipe and the fastest so far: coordinate descent, deterministic but for the clock.

    ``run`` compiles with a recipe and gives one call. Nothing is begun that takes longer than what is left of
    ``budget`` seconds, as far as what was tried before tells; the first recipe is always compiled. ``trains``: see
    :func:`~daceopt.programs.tuning.result.alternatives`. What is returned is as fast as the first recipe, or faster.
    """

    def __init__(
        self,
        record: TuningRecord,
        recipe: Recipe,
        run: Callable[[Recipe], Run],
        budget: float,
        *,
        eager: Run | None = None,
        trains: bool | None = None,
    ) -> None:
        self._record, self._run, self._budget, self._eager = record, run, budget, eager
        self._deadline = time.perf_counter() + budget
        self._recipes = alternatives(recipe, trains)
        self._speedup = 1.0

    def find(self) -> TuningResult:
        """The fastest way. Raises what compiling the first recipe raises."""
        start = time.perf_counter()
        first = self._way = _Way(self._recipes[0])
        self._first = self._best = self._run(self._recipes[0])
        self._seconds = self._measure()[_FIRST]
        self._longest = time.perf_counter() - start
        self._trials = [TuningTrial(first.text, 1.0)]
        untried = self._try_all()
        if self._way != first and self._measure()[_BEST] > self._seconds:  # what won by chance
            self._way, self._speedup = first, 1.0
        times = self._seconds, self._seconds / self._speedup
        result = TuningResult(self._way.name, self._way.changes, times, tuple(self._trials), untried, self._budget)
        logger.info("%s", result)
        return result

    def _try_all(self) -> int:
        """Try everything while there is time; how many ways were left then."""
        ways = [*map(_Way, self._recipes[1:]), *([_Way(None)] if self._eager is not None else [])]
        total = len(ways) + len(variations(self._recipes[0]))
        with progress.parts(total, "ways to run it") as counter:
            for position, way in enumerate(ways):
                if not self._attempt(way):
                    return total - position
                counter.advance(f"ways to run it, the best {self._speedup:.2f} x: {self._way.text}")
            changes = [] if self._way.recipe is None else variations(self._way.recipe)
            for position, variation in enumerate(changes):
                changed = self._way.with_change(variation)
                if changed is not None and not self._attempt(changed):
                    return len(changes) - position
                counter.advance(f"ways to run it, the best {self._speedup:.2f} x: {self._way.text}")
        return 0

    def _attempt(self, way: _Way) -> bool:
        """Try a way, unless an earlier search tells that it is not faster; False where there is no time for it."""
        earlier = self._record.speedup(way.text)
        if earlier is not None and earlier < (1 + _MARGIN) * self._speedup:
            self._trials.append(TuningTrial(way.text, earlier))
            return True
        start = time.perf_counter()
        if earlier is None and start + self._longest > self._deadline:
            return False
        trial = TuningTrial(way.text, self._speedup_of(way))
        self._longest = max(self._longest, time.perf_counter() - start)
        self._trials.append(trial)
        self._record.keep_trial(trial)
        return True

    def _speedup_of(self, way: _Way) -> float:
        """Its speedup over the first recipe as measured; 0 where it does not compile, or run."""
        try:
            run = self._eager if way.recipe is None else self._run(way.recipe)
            return 0.0 if run is None else self._race(way, run)
        except DaceoptError as error:
            logger.info("%s does not run: %s", way.text, error)
            return 0.0

    def _race(self, way: _Way, run: Run) -> float:
        """Its speedup over the first recipe; it is the best from now on where it is faster twice."""
        for is_last in (False, True):
            seconds = self._measure(run)
            speedup = seconds[_FIRST] / seconds[_OWN]
            if seconds[_OWN] > (1 - _MARGIN) * seconds[_BEST]:
                break
            if is_last:
                self._way, self._best, self._speedup = way, run, speedup
        return speedup

    def _measure(self, run: Run | None = None) -> dict[str, float]:
        """Seconds of the first recipe, of the best way where that is another, and of ``run``, all in turn."""
        contenders = {_FIRST: self._first, _BEST: self._best, **({} if run is None else {_OWN: run})}
        if self._best is self._first:
            del contenders[_BEST]
        seconds = interleave(contenders, seconds=_ROUND, warmup=1, at_least=3)
        self._seconds = seconds[_FIRST]
        return {_BEST: seconds[_FIRST], **seconds}
