"""From a graph of operators to the graphs that are built: the recipe, which differentiates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daceopt import progress
from daceopt.errors import UnequalLayers
from daceopt.passes import choice
from daceopt.passes.choice import Choice
from daceopt.passes.runner import Runner
from daceopt.passes.transform import DIFFERENTIATE, Transformation
from daceopt.store import identity

if TYPE_CHECKING:
    import onnx

    from daceopt.ir.control.imported import Imported
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph
    from daceopt.layers.equal_layers import EqualLayers
    from daceopt.passes.recipe import Recipe
    from daceopt.passes.step import Step

logger = logging.getLogger("daceopt.recipe")

Load = Callable[[str], "Imported"]
"""Imports for a target: what its libraries multiply as it is, nothing widens."""


@dataclass
class Derived:
    """A program after its recipe, and how it came about; ``choice``: why by this recipe; ``seconds`` per phase."""

    program: Program
    imported: Imported
    history: list[Step] = field(default_factory=list)
    choice: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def forward(self) -> Graph:
        return self.program.forward

    @property
    def backward(self) -> Graph | None:
        return self.program.backward

    def directions(self) -> list[tuple[Graph, dict[str, str]]]:
        """The forward graph, and the backward graph if there is one, each with the roles of its boundary as text.

        ``input:k`` and ``output:k`` of the forward; the backward reads ``input:k``, ``output:k`` and ``grad:k`` (the
        gradient of output k) and writes ``grad_input:k``.
        """
        return [(graph, self.program.roles(graph)) for graph in self.program.directions()]

    @contextmanager
    def time_phase(self, phase: str) -> Iterator[None]:
        """Count the time inside as ``phase``, and show it as that."""
        start = time.perf_counter()
        try:
            with progress.phase(phase):
                yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


@dataclass
class Source:
    """What the graphs are derived from, and by which recipe."""

    load: Load
    recipe: Recipe
    verify: str | None = None
    model: onnx.ModelProto | None = None
    graphs: Derived | None = None

    def derive(self) -> Derived:
        """Load and derive."""
        started = time.perf_counter()
        imported = self.load(self.recipe.target)
        capture = time.perf_counter() - started
        derived = derive(imported, self.recipe, self.verify)
        derived.seconds = {"capture": capture, **derived.seconds}
        return derived


def derive(imported: Imported, recipe: Recipe, verify: str | None = None) -> Derived:
    """From a graph of operator nodes to the graphs that are built. Raises MemoryBudgetError where the recipe has a
    budget that cannot be held.

    Of a network with many equal layers the recipe runs on a few; where what it makes of one layer is not what it makes
    of the next, it runs on all. So it does where each step is to be verified, a budget is held, or a step may tell
    layers apart.
    """
    from daceopt.layers.equal_layers import EqualLayers

    layers = EqualLayers(imported)
    if verify is None and recipe.budget is None and not any(map(_tells_layers_apart, _steps(recipe))):
        layers = layers.shorten()
    try:
        return _run_recipe(layers, recipe, verify)
    except UnequalLayers as reason:
        logger.info("the recipe runs on all layers: %s", reason)
        return _run_recipe(EqualLayers(imported), recipe, verify)


def _steps(recipe: Recipe) -> Iterator[Transformation]:
    """All that it may run."""
    for one in recipe.recipes() if isinstance(recipe, Choice) else (recipe,):
        yield from one.resolve()


def _tells_layers_apart(step: Transformation) -> bool:
    """Does a step work at places that have names, or is it not daceopt's own, which may count what it finds?"""
    return step.names_places or not identity.is_own(step.inner.defined_by.__module__)


def _run_recipe(layers: EqualLayers, recipe: Recipe, verify: str | None) -> Derived:
    """The recipe on what is left of the layers, and its result for all of them."""
    from daceopt import libs
    from daceopt.ir.control.program import Program

    imported = layers.short
    derived = Derived(Program.of(imported.graph, imported.gradients), layers.full)
    if imported.device == "cpu":
        libs.anticipate(imported.graph)
    with derived.time_phase("recipe"):
        if isinstance(recipe, Choice):
            run = choice.run(recipe, derived.program, verify, layers.lengthen)
            derived.program, derived.history, derived.choice = run[0], run[1], str(run[2])
        elif recipe.budget is not None and imported.gradients is not None:
            from daceopt.passes import budgeting

            derived.program, derived.history, derived.choice = budgeting.run(recipe, derived.program, verify)
        else:
            derived.history = Runner(recipe, verify).run(derived.program)
            derived.program = layers.lengthen(derived.program)
    derived.history = layers.scale(derived.history, derived.program)
    spent = sum(step.seconds for step in derived.history if step.level == DIFFERENTIATE)
    derived.seconds = {"recipe": derived.seconds["recipe"] - spent, DIFFERENTIATE: spent}
    return derived
