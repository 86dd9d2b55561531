"""Finds the step and the site of a recipe that breaks a graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daceopt.errors import SiteError, VerificationError
from daceopt.passes import reproducer
from daceopt.passes.feeds import needed_inputs
from daceopt.passes.recipe import Recipe
from daceopt.passes.transform import DIFFERENTIATE, Transformation
from daceopt.passes.verification import Numerics, Structure

if TYPE_CHECKING:
    import numpy as np

    from daceopt.ir.graph import Graph

_MOST_SITES = 1 << 16


@dataclass(frozen=True)
class Guilty:
    """The step, its index in the recipe without markers, the number of the site (from 1), what happens, and the file
    that shows it."""

    step: str
    index: int
    site: int
    reason: str
    reproducer: Path

    def __str__(self) -> str:
        return f"step {self.index + 1} ({self.step}, site {self.site}): {self.reason}; reproducer in {self.reproducer}"


def bisect(recipe: Recipe, graph: Graph, inputs: dict[str, np.ndarray] | None = None) -> Guilty | None:
    """The first step of ``recipe`` that breaks ``graph``: its structure, its numbers on ``inputs``, or by an exception.

    None when all is well. The steps are bisected on copies: ``graph`` stays, and a long recipe needs few executions.
    """
    steps = [s for s in recipe.resolved() if s.level != DIFFERENTIATE and s.runs_on("forward")]
    check = Numerics(graph.copy(), inputs)
    right, wrong = 0, len(steps) + 1  # the graph is right after ``right`` steps and wrong after ``wrong``
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if broken(steps[:middle], graph, check) is None:
            right = middle
        else:
            wrong = middle
    return None if wrong > len(steps) else _explain(steps, wrong - 1, graph, check)


def broken(steps: list[Transformation], graph: Graph, check: Numerics | None, limit: int | None = None) -> str | None:
    """What is wrong with ``graph`` after ``steps`` (the last one at most ``limit`` times), or None; it stays.

    ``check``: of its numbers; None for its structure alone.
    """
    trial = graph.copy()
    try:
        for step in steps[:-1]:
            step.run(trial)
        for step in steps[-1:]:
            step.run(trial, limit)
        Structure(full=True).before(trial)
        return None if check is None else check.complaint(trial)
    except (VerificationError, SiteError) as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _explain(steps: list[Transformation], index: int, graph: Graph, check: Numerics) -> Guilty:
    prefix = steps[: index + 1]
    reason = broken(prefix, graph, check) or ""
    wrong = _first_site(prefix, graph, check)
    file = _reproducer(prefix, graph, check, f"step {steps[index]}: {reason}")
    return Guilty(str(steps[index]), index, wrong, reason, file)


def _first_site(prefix: list[Transformation], graph: Graph, check: Numerics | None) -> int:
    """The number of the first site, from 1, after which the last of ``prefix`` has broken ``graph``."""
    right, wrong = 0, 1
    while wrong < _MOST_SITES and broken(prefix, graph, check, wrong) is None:
        right, wrong = wrong, 2 * wrong
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (middle, wrong) if broken(prefix, graph, check, middle) is None else (right, middle)
    return wrong


def invalid_site(step: Transformation, graph: Graph) -> str | None:
    """The first site after which ``step`` alone leaves ``graph`` invalid, said as reports do; None where it does not.
    ``graph`` stays. Raises what the step raises."""
    if broken([step], graph, None) is None:
        return None
    number = _first_site([step], graph, None)
    return step.run(graph.copy(), number).sites[-1]


def _reproducer(prefix: list[Transformation], graph: Graph, check: Numerics, failure: str) -> Path:
    """Of the last step, on the graph that the others leave."""
    before = graph.copy()
    for step in prefix[:-1]:
        step.run(before)
    return reproducer.of_step(prefix[-1], before, needed_inputs(before, check.inputs), failure)
