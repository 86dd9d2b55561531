"""What a search has found to be the fastest, kept in the cache by the program and the machine, or as a recipe file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from daceopt import system
from daceopt._version import __version__
from daceopt.errors import DaceoptError
from daceopt.passes.choice import Choice
from daceopt.passes.recipe import Recipe, recipes
from daceopt.programs.compiled import own_source
from daceopt.programs.tuning.variations import Variation
from daceopt.store import builders
from daceopt.store.cache import default_cache, key
from daceopt.store.values import Values

EAGER = "eager PyTorch"
_FINDING = "tuned"


@dataclass(frozen=True)
class TuningTrial:
    """A way to run a program, in words; ``speedup``: the seconds of the first recipe over its own, 0 where it does not
    compile."""

    text: str
    speedup: float

    def __str__(self) -> str:
        return f"{self.speedup:6.3f} x  {self.text}" if self.speedup else f"   fails  {self.text}"


@dataclass(frozen=True)
class TuningResult:
    """The fastest way to run a program: ``name`` is a recipe's or ``EAGER``, ``changes`` are those of it that pay.

    ``seconds``: of one call (with its backward pass, where it trains), with the first recipe and as found. ``trials``:
    all that was tried, the first recipe first; ``untried``: how many ways were left when ``budget`` seconds were over.
    ``base``: the recipe that was tuned.
    """

    name: str
    changes: tuple[Variation, ...]
    seconds: tuple[float, float]
    trials: tuple[TuningTrial, ...]
    untried: int
    budget: float
    base: str | Recipe = field(default="auto", compare=False)

    def __str__(self) -> str:
        changed = "; ".join(v.text for v in self.changes)
        first, own = self.seconds
        times = f"{1e3 * own:.3f} ms, {first / own:.2f} times as fast as {self.trials[0].text}"
        note = f"; {self.untried} more were left after {self.budget:.3g} s" if self.untried else ""
        what = f"{self.name}{f' ({changed})' if changed else ''}"
        return f"{what} is the fastest of {len(self.trials)} ways as measured: {times}{note}"

    def report(self) -> str:
        """All that was tried, the fastest first."""
        return "\n".join([str(self), *map(str, self._by_speedup())])

    def _by_speedup(self) -> list[TuningTrial]:
        return sorted(self.trials, key=lambda trial: -trial.speedup)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe, one of those that ``base`` is a choice of, with the changes; None for eager PyTorch. Raises
        DaceoptError where it has no place for one of the changes."""
        chosen = next((r for r in alternatives(self.base) if r.name == self.name), None)
        for variation in self.changes:
            chosen = chosen and variation.on(chosen)
        return chosen

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as a recipe file, for other programs and machines of the kind; returns its path. Raises DaceoptError
        for eager PyTorch, and for steps that no file can name."""
        from daceopt.programs.recipe_text import plain, recipe_name, recipe_text, step_text

        recipe = self.recipe
        if recipe is None:
            raise DaceoptError(f"{self}; there is no recipe to save")
        target = Path(path)
        name, steps = recipe_name(target.stem, "tuned"), recipe.resolve()
        head = [f"The fastest of {len(self.trials)} ways as measured, written by daceopt {__version__}.", ""]
        head += [f"On {plain(system.cpu_name())}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}:"]
        head += [f"    {plain(str(trial))}" for trial in self._by_speedup()]
        head += ["", f'Use: daceopt.transformations.load_file(this file), then recipe="{name}"; or `--load` it.']
        lines = [f"        {step_text(step)}," for step in steps]
        target.write_text(recipe_text(name, head, steps, lines), encoding="utf-8")
        return target

    def to_json(self) -> dict[str, object]:
        """As :meth:`from_json` reads it."""
        own = {name: getattr(self, name) for name in ("name", "seconds", "untried", "budget")}
        trials = [[trial.text, trial.speedup] for trial in self.trials]
        return {**own, "trials": trials, "changes": [v.to_json() for v in self.changes]}

    @classmethod
    def from_json(cls, data: Any) -> TuningResult:
        """Raises ValueError, TypeError or KeyError for what :meth:`to_json` did not write."""
        first, own = data["seconds"]
        changes = tuple(map(Variation.from_json, data["changes"]))
        trials = tuple(TuningTrial(str(words), float(speedup)) for words, speedup in data["trials"])
        return cls(
            str(data["name"]), changes, (float(first), float(own)), trials, int(data["untried"]), float(data["budget"])
        )


def alternatives(recipe: str | Recipe, trains: bool | None = None) -> tuple[Recipe, ...]:
    """The recipes to choose from; for programs with gradients (``trains``), or without; all where it is None."""
    chosen = recipes.get(recipe) if isinstance(recipe, str) else recipe
    return chosen.recipes(trains) if isinstance(chosen, Choice) else (chosen,)


_RESULTS = Values(_FINDING, TuningResult.from_json)
_SPEEDUPS = Values("trial", float)
_WAYS = Values("ways", lambda texts: list(map(str, texts)))


class TuningRecord:
    """What is known of tuning one program on this machine: trials as they are made, so that a search which was ended
    goes on where it was, and what was found. ``program`` identifies it, ``device``: where calls run."""

    def __init__(self, program: str, recipe: Recipe, device: torch.device | None = None) -> None:
        where = "" if device is None or device.type != "cuda" else torch.cuda.get_device_name(device)
        rest = torch.get_num_threads(), own_source(), where
        self._key = builders.choose(
            default_cache(), _FINDING, lambda machine: key(_FINDING, program, recipe.fingerprint(), machine, *rest)
        )

    def result(self) -> TuningResult | None:
        """What was found."""
        return _RESULTS.find(self._key)

    def keep(self, result: TuningResult) -> None:
        """Let it be found from now on, in place of what a shorter search has found."""
        _RESULTS.keep(self._key, result.to_json())

    def speedup(self, text: str) -> float | None:
        """That of a trial; None where it was not made."""
        return _SPEEDUPS.find(key(self._key, text))

    def keep_trial(self, trial: TuningTrial) -> None:
        """Let it be known to a search that goes on."""
        _SPEEDUPS.keep(key(self._key, trial.text), trial.speedup)

    def ways(self) -> list[str] | None:
        """Ways to try that were found by a search of another kind, as texts; None where there was none."""
        return _WAYS.find(self._key)

    def keep_ways(self, texts: Sequence[str]) -> None:
        """Let them be known to a search that goes on."""
        _WAYS.keep(self._key, list(texts))
