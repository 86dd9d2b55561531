"""Runner: applies a recipe to a program step by step, verified, timed and recorded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from daceopt import progress
from daceopt.errors import DaceoptError, SiteError, VerificationError
from daceopt.passes import trace, verification
from daceopt.passes.step import Step
from daceopt.passes.transform import DIFFERENTIATE, LEVELS, Outcome, Transformation

if TYPE_CHECKING:
    import numpy as np

    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.scalar.dims import Dim

_T = TypeVar("_T")
_VERIFY = (None, "foreign", "structure", "numerics")
Before = Callable[[Transformation, "Graph"], object]
After = Callable[[Step, "Graph"], object]

logger = logging.getLogger("daceopt.recipe")


class Runnable(Protocol):
    """What a run needs of a recipe."""

    def resolve(self) -> tuple[Transformation, ...]:
        """The transformations in their order. Raises DaceoptError for unknown names or levels out of order."""

    def with_differentiation(self) -> Runnable:
        """The same with a differentiation, if it has none."""


class Runner:
    """Applies a recipe to programs and keeps the history of what it did.

    ``verify``: None (cheap checks only), "structure" (the SDFG is validated around every step, and ``match`` watched),
    "foreign" (the same of steps that are not daceopt's own, cheap checks of others) or "numerics" (the graph is also
    executed on ``inputs``, array name -> values, random where absent, and compared with float64).
    ``before(transformation, graph)`` and ``after(step, graph)`` are called around every step, for each graph that it
    edits.
    """

    def __init__(
        self,
        recipe: Runnable,
        verify: str | None = None,
        *,
        inputs: dict[str, np.ndarray] | None = None,
        before: Before | None = None,
        after: After | None = None,
    ):
        if verify not in _VERIFY:
            raise DaceoptError(f"verify={verify!r}: expected one of {', '.join(map(repr, _VERIFY))}")
        self.recipe = recipe
        self.history: list[Step] = []
        self._verify, self._inputs, self._before, self._after = verify, inputs, before, after

    def run(self, subject: Graph | Program, levels: Iterable[str] | None = None) -> list[Step]:
        """Apply the steps in place, each to the forward and then to the backward graph; returns their records, which
        also join ``history``.

        ``subject``: a program, or the graph of one that is not differentiated. ``levels`` restricts to some levels.
        Raises VerificationError when a step breaks a graph, its numbers, or fails.
        """
        from daceopt.ir.control.program import Program

        program = subject if isinstance(subject, Program) else Program.of(subject)
        recipe = self.recipe if program.gradients is None else self.recipe.with_differentiation()
        chosen = LEVELS if levels is None else tuple(levels)
        return self.apply(program, [s for s in recipe.resolve() if s.level in chosen])

    def apply(self, program: Program, steps: Iterable[Transformation]) -> list[Step]:
        """Apply these steps and no others in place; a program that needs no gradients is not differentiated."""
        steps = [s for s in steps if program.gradients or s.level != DIFFERENTIATE]
        states = _States(self._verify, self._inputs)
        start = len(self.history)
        trace.write_start(program.directions())
        with progress.steps(len(steps)) as counter:
            for transformation in steps:
                with trace.failures(len(self.history) + 1, str(transformation)):
                    self._apply(transformation, program, states)
                counter.advance(str(transformation))
        return self.history[start:]

    def _apply(self, transformation: Transformation, program: Program, states: _States) -> None:
        """One step in all directions that it edits, recorded."""
        if transformation.edits_programs:
            self._announce(transformation, program.forward)
            self._record(_on_program(transformation, program, states), program.forward)
            return
        for direction, graph in program.by_direction():
            if transformation.runs_on(direction):
                self._announce(transformation, graph)
                self._record(_on_graph(transformation, graph, states.of(graph)), graph)
                program.align()

    def _announce(self, transformation: Transformation, graph: Graph) -> None:
        if self._before is not None:
            self._before(transformation, graph)

    def _record(self, step: Step, graph: Graph) -> None:
        self.history.append(step)
        trace.write_step(len(self.history), step, graph)
        logger.info("%s, %s", step, step.graph)
        for kind, lines in (("site", step.sites), ("near miss", step.near_misses)):
            for line in lines:
                logger.debug("  %s %s", kind, line)
        if self._after is not None:
            self._after(step, graph)


@dataclass
class _State:
    """What is known of a graph between steps."""

    guard: Any
    nodes: int
    moved: Any


class _States(dict["Graph", _State]):
    """By graph: differentiation gives a program new ones."""

    def __init__(self, verify: str | None, inputs: dict[str, np.ndarray] | None):
        super().__init__()
        self._verify, self._inputs = verify, inputs

    def of(self, graph: Graph) -> _State:
        if graph not in self or not self[graph].guard.is_for(graph):  # what is saved for it may have another shape
            self[graph] = _State(self._guard(graph), len(graph.nodes()), bytes_moved(graph))
        return self[graph]

    def _guard(self, graph: Graph) -> Any:
        if self._verify == "numerics":
            return verification.Numerics(graph, self._inputs)
        return verification.Structure(full=self._verify == "structure", foreign=self._verify == "foreign")


def _on_program(transformation: Transformation, program: Program, states: _States) -> Step:
    states_before = [(graph, states.of(graph)) for graph in program.directions()]
    for graph, state in states_before:
        state.guard.before(graph)
    before = states_before[0][1]
    start = time.perf_counter()
    failed = partial(before.guard.explain_failure, gradients=program.gradients)
    name = program.forward.name
    outcome = _guard(transformation, name, lambda: transformation.run_program(program), failed)
    seconds = time.perf_counter() - start
    errors = [
        state.guard.after(transformation, graph, outcome)
        for graph, (_, state) in zip(program.directions(), states_before)
        if state.guard.is_for(graph)
    ]
    if program.backward is not None and len(states_before) == 1:
        states.pop(program.forward, None)  # what the backward pass reads is to be the same from here on, too
    states.of(program.forward)
    return _record(transformation, program.forward, outcome, seconds, before, errors[0] if errors else None)


def _on_graph(transformation: Transformation, graph: Graph, state: _State) -> Step:
    state.guard.before(graph)
    name, failed = graph.name, state.guard.explain_failure
    _guard(transformation, name, lambda: state.guard.looking(transformation, graph), failed)
    start = time.perf_counter()
    outcome = _guard(transformation, name, lambda: transformation.run(graph), failed)
    seconds = time.perf_counter() - start
    error = state.guard.after(transformation, graph, outcome)
    return _record(transformation, graph, outcome, seconds, state, error)


def _record(
    transformation: Transformation, graph: Graph, outcome: Outcome, seconds: float, state: _State, error: float | None
) -> Step:
    """The record of a step; ``state`` becomes what it is now."""
    nodes, moved = state.nodes, state.moved
    if outcome.sites and transformation.changes_dataflow:
        state.nodes, state.moved = len(graph.nodes()), bytes_moved(graph)
    sites, misses = outcome.sites, outcome.near_misses
    after = state.nodes, moved, state.moved
    name, level = str(transformation), transformation.level
    return Step(name, level, seconds, sites, misses, nodes, *after, error, graph.name)


def _guard(
    transformation: Transformation, graph: str, run: Callable[[], _T], failed: Callable[[Transformation, str], str]
) -> _T:
    """What ``run`` gives; what it raises by mistake is told with the name of the step and what ``failed`` adds."""
    try:
        return run()
    except Exception as error:
        is_own = isinstance(error, DaceoptError)
        if is_own and not isinstance(error, SiteError):
            raise
        what = str(error) if is_own else f"{type(error).__name__}: {error}"
        more = failed(transformation, f"step {transformation}: {what}")
        raise VerificationError(f"step {transformation} failed on graph {graph}: {what}{more}") from error


def bytes_moved(graph: Graph) -> Dim:
    """Bytes that the graph's nodes read and write: an int, or an expression where shapes are symbolic."""
    from daceopt.cost import data_movement

    total = data_movement(graph).total
    return int(total) if total.is_Integer else total
