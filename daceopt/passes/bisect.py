"""Finds the step and the site of a recipe that breaks a program, forward or backward, as a graph or as it is built."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from daceopt.errors import SiteError, VerificationError
from daceopt.ir.control.program import Program
from daceopt.ir.text.render import render
from daceopt.passes import reproducer
from daceopt.passes.bisect_built import BuiltCheck
from daceopt.passes.feeds import needed_inputs
from daceopt.passes.recipe import Recipe
from daceopt.passes.transform import DIFFERENTIATE, Transformation
from daceopt.passes.verification import Numerics, Structure

if TYPE_CHECKING:
    import numpy as np

    from daceopt.ir.graph.graph import Graph

_MOST_SITES = 1 << 16
_FORWARD, _BACKWARD = 0, 1
_Limits = Mapping[int, int]  # direction -> most sites of the last step


@dataclass(frozen=True)
class Guilty:
    """The step, its index in the recipe without markers, the number of the site (from 1; 0 for a step on programs),
    what happens, the file that shows it, and the graph where it happens."""

    step: str
    index: int
    site: int
    reason: str
    reproducer: Path
    graph: str = ""

    def __str__(self) -> str:
        where = f" of graph {self.graph}" if self.graph else ""
        site = f", site {self.site}{where}" if self.site else where
        return f"step {self.index + 1} ({self.step}{site}): {self.reason}; reproducer in {self.reproducer}"


def bisect(
    recipe: Recipe, subject: Graph | Program, inputs: dict[str, np.ndarray] | None = None, built: bool = False
) -> Guilty | None:
    """The first step of ``recipe`` that breaks ``subject``: its structure, its numbers on ``inputs``, or by an
    exception. A program whose gradients are wanted is differentiated, and steps are held to both of its graphs.

    ``built``: where all graphs are right, look for the first step after which what is compiled is not. None when all is
    well. The steps are bisected on copies: ``subject`` stays, and a long recipe needs few executions.
    """
    program = subject if isinstance(subject, Program) else Program.of(subject)
    recipe = recipe if program.gradients is None else recipe.with_differentiation()
    steps = [s for s in recipe.resolve() if program.gradients is not None or s.level != DIFFERENTIATE]
    return _Search(program, steps, inputs).run(built)


def what_breaks(step: Transformation, graph: Graph, check: Numerics | None, limit: int | None = None) -> str | None:
    """What is wrong with ``graph``, of either direction, after ``step`` (at most ``limit`` times), or None; it stays.

    ``check``: of its numbers; None for its structure alone.
    """
    trial = graph.copy()
    try:
        step.run(trial, limit)
    except Exception as error:
        return _error_text(error)
    return _complaint(trial, check)


def invalid_site(step: Transformation, graph: Graph) -> str | None:
    """The first site after which ``step`` alone leaves ``graph`` invalid, said as reports do; None where it does not.
    ``graph`` stays. Raises what the step raises."""
    if what_breaks(step, graph, None) is None:
        return None
    number = _first_site(lambda k: what_breaks(step, graph, None, k) is not None)
    return step.run(graph.copy(), number).sites[-1]


class _Search:
    def __init__(self, program: Program, steps: list[Transformation], inputs: dict[str, np.ndarray] | None):
        self._program, self._steps, self._inputs = program, steps, inputs

    def run(self, built: bool) -> Guilty | None:
        start = self._program.copy()
        for first, last in self._segments():
            checks = [Numerics(g.copy(), self._inputs) for g in start.directions()]
            guilty = self._guilty(start, first, last, checks)
            if guilty is not None:
                return guilty
            _apply(start, self._steps[first:last])
        return self._search_built() if built else None

    def _segments(self) -> Iterator[tuple[int, int]]:
        """Up to the step that makes two graphs of one, and from there on."""
        at = [k + 1 for k, s in enumerate(self._steps) if s.level == DIFFERENTIATE]
        yield from itertools.pairwise([0, *at, len(self._steps)])

    def _guilty(self, start: Program, first: int, last: int, checks: Sequence[Numerics]) -> Guilty | None:
        steps = self._steps[first:last]
        wrong = _first(len(steps), lambda k: _first_complaint(start, steps[:k], checks) is not None)
        return None if wrong is None else self._explain(start, steps[:wrong], first + wrong - 1, checks)

    def _explain(self, start: Program, prefix: list[Transformation], index: int, checks: Sequence[Numerics]) -> Guilty:
        direction, reason = _first_complaint(start, prefix, checks) or (_FORWARD, "")
        step = prefix[-1]
        before = start.copy()
        _apply(before, prefix[:-1])
        graph = list(before.directions())[direction]
        site = 0
        if not step.edits_programs:
            site = _first_site(lambda k: _first_complaint(start, prefix, checks, {direction: k}) is not None)
        gradients = (
            None
            if before.gradients is None
            else (before.gradients.inputs, before.gradients.outputs, before.gradients.policy)
        )
        feeds = needed_inputs(graph, checks[direction].inputs)
        fields = gradients if step.edits_programs else None
        file = reproducer.of_step(step, graph, feeds, f"step {step}: {reason}", fields)
        return Guilty(str(step), index, site, reason, file, graph.name)

    def _search_built(self) -> Guilty | None:
        """From the end: behind the last program that is right. One in the middle of a recipe may round more than its
        graph says, until a later step has cut its sums."""
        check = BuiltCheck(self._inputs)
        programs = [self._program.copy()]
        for step in self._steps:
            programs.append(programs[-1].copy())
            _apply(programs[-1], [step])
        if check.difference(programs[-1]) is None:
            return None
        wrong = len(self._steps)
        for k in reversed(range(wrong)):
            changed = _text(programs[k]) != _text(programs[k + 1])
            if changed and check.difference(programs[k]) is None:
                break
            wrong = max(k, 1)
        name, reason, file = check.report(programs[wrong])
        return Guilty(str(self._steps[wrong - 1]), wrong - 1, 0, reason, file, name)


def _text(program: Program) -> list[str]:
    return [render(graph) for graph in program.directions()]


def _first(count: int, wrong: Callable[[int], bool]) -> int | None:
    """The least number of steps after which all is ``wrong``, by halves; None where it is not after all of them."""
    low, high = 0, count + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(middle) else (middle, high)
    return None if high > count else high


def _first_site(wrong: Callable[[int], bool]) -> int:
    right, right_from = 0, 1
    while right_from < _MOST_SITES and not wrong(right_from):
        right, right_from = right_from, 2 * right_from
    while right_from - right > 1:
        middle = (right + right_from) // 2
        right, right_from = (right, middle) if wrong(middle) else (middle, right_from)
    return right_from


def _apply(program: Program, steps: Sequence[Transformation], limits: _Limits | None = None) -> None:
    """Run ``steps`` as the runner does; the last one at most so often as ``limits`` says."""
    for k, step in enumerate(steps):
        if step.edits_programs:
            step.run_program(program)
            continue
        for direction, (name, graph) in enumerate(program.by_direction()):
            if step.runs_on(name):
                step.run(graph, (limits or {}).get(direction) if k == len(steps) - 1 else None)
                program.align()


def _first_complaint(
    start: Program, steps: Sequence[Transformation], checks: Sequence[Numerics], limits: _Limits | None = None
) -> tuple[int, str] | None:
    """The direction that is wrong after ``steps`` on a copy of ``start``, and what is wrong; None where none is."""
    trial = start.copy()
    try:
        _apply(trial, steps, limits)
    except Exception as error:
        return _blame(start, steps), _error_text(error)
    for direction, (graph, check) in enumerate(zip(trial.directions(), checks)):
        complaint = _complaint(graph, check)
        if complaint is not None:
            return direction, complaint
    return None


def _complaint(graph: Graph, check: Numerics | None) -> str | None:
    """What is wrong with the structure of ``graph``, or with its numbers; None where nothing is."""
    try:
        Structure(full=True).check(graph, "after it")
        return check.complaint(graph) if check is not None and check.is_for(graph) else None
    except Exception as error:
        return _error_text(error)


def _error_text(error: Exception) -> str:
    is_own = isinstance(error, VerificationError | SiteError)
    return str(error) if is_own else f"{type(error).__name__}: {error}"


def _blame(start: Program, steps: Sequence[Transformation]) -> int:
    """The direction on which the last of ``steps`` fails."""
    trial = start.copy()
    _apply(trial, steps[:-1])
    try:
        steps[-1].run(trial.forward.copy())
    except Exception:
        return _FORWARD
    return _BACKWARD if trial.backward is not None else _FORWARD
