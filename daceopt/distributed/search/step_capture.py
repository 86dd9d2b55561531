"""The program of a module's forward and backward pass as it is before operators are fused."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from daceopt.errors import CaptureError, DaceoptError
from daceopt.modules import frames
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import Break
from daceopt.modules.dispatch import first_line
from daceopt.modules.observe import own_forward
from daceopt.modules.options import Options
from daceopt.passes.recipe import Recipe, recipes
from daceopt.passes.runner import Runner
from daceopt.programs.stats import Stats
from daceopt.runtime.binding import Binding
from daceopt.training.step_graph import imported_step, trained_arguments
from daceopt.training.training_step import TrainingStep

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced
    from daceopt.ir.control.imported import Imported
    from daceopt.ir.control.program import Program

FUSION = "map-fusion"
"""The step of a recipe that a strategy takes the place of."""
RECIPE = "disco"
_GROUP = "search"  # of ranks that are not there: nothing runs


@dataclass(frozen=True)
class CapturedStep:
    """``program``: both directions, everything lowered and nothing fused; ``fusion``: the step of the recipe that comes
    next, ``left``: what follows it."""

    program: Program
    fusion: Any
    left: tuple[Any, ...]


class _Capture(Backend):
    """Keeps the graphs that Dynamo finds, and runs them in eager PyTorch."""

    orders_arguments = False

    def __init__(self, parameters: Mapping[int, str]) -> None:
        super().__init__(Options(), Stats(), self._leave)
        self._parameters = parameters
        self.captures: list[tuple[Traced, dict[int, str], list[Any]]] = []

    def _leave(self, reason: Break, error: BaseException) -> None:
        raise CaptureError(f"a part of the step has no graph: {reason.text}") from error

    def add(self, traced: Traced, inputs: Sequence[object]) -> Any:
        names = enumerate(self._parameters.get(id(x)) for x in inputs)
        self.captures.append((traced, {k: name for k, name in names if name is not None}, list(inputs)))
        return traced.graph.forward


def capture(
    module: nn.Module | TrainingStep,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    world: int = 1,
    recipe: str | Recipe = RECIPE,
) -> CapturedStep:
    """What one call of ``module``, which is left as it is, and the gradients of its parameters compute on each of
    ``world`` workers, as ``data_parallel`` compiles it; of a training step the update, too.

    Raises CaptureError where that is not one graph, and what the call itself raises.
    """
    try:
        twin, arguments, named = copy.deepcopy((module, list(args), dict(kwargs or {})))
    except Exception as error:
        raise CaptureError(f"{type(module).__name__} cannot be copied: {first_line(error)}") from error
    step = twin if isinstance(twin, TrainingStep) else None
    called, model = (twin.objective, twin.model) if isinstance(twin, TrainingStep) else (twin, twin)
    backend = _Capture({id(p): name for name, p in model.named_parameters() if p.requires_grad})
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        frames.compile_frames(own_forward(called), backend, dynamic=False)(*arguments, **named)
    breaks = backend.new_breaks()
    if len(backend.captures) != 1:
        why = f": {'; '.join(b.text for b in breaks)}" if breaks else ""
        raise CaptureError(f"a strategy is for a step of one graph, and this one has {len(backend.captures)}{why}")
    traced, names, inputs = backend.captures[0]
    if step is not None:
        return lower(_imported_step(step, traced, names, inputs, world), recipe)
    return lower(_import(traced, names, world), recipe)


def _imported_step(
    step: TrainingStep, traced: Traced, names: Mapping[int, str], inputs: Sequence[object], world: int
) -> Imported:
    """The graph of a training step; ``names``: of the parameters among its arguments."""
    from daceopt.ir.control.imported import Reduction

    plan = step.binder.bind([(k, inputs[k]) for k in trained_arguments(traced)]).plan
    if not plan.updates:
        raise DaceoptError("the next call of the step only collects gradients; expected accumulate=1")
    mine = {p.argument for p in plan.parameters}
    return imported_step(traced, plan, Reduction(_GROUP, world, {k: n for k, n in names.items() if k in mine}))


def _import(traced: Traced, names: Mapping[int, str], world: int) -> Imported:
    """The graph of a module."""
    from daceopt.capture.torch.importing import load
    from daceopt.ir.control.imported import Reduction

    imported = load(traced)
    if imported.gradients is None:
        raise DaceoptError("nothing that the step computes has a gradient: no result depends on a parameter")
    binding = Binding.from_json(imported.notes["binding"])
    parameters = {k: names[a] for k, (kind, a) in enumerate(binding.inputs) if kind == "tensor" and a in names}
    imported.gradients = replace(imported.gradients, reduction=Reduction(_GROUP, world, parameters))
    return imported


def lower(imported: Imported, recipe: str | Recipe = RECIPE) -> CapturedStep:
    """The program of a graph and its gradients, up to what fuses operators."""
    from daceopt.ir.control.program import Program

    program = Program.of(imported.graph, imported.gradients)
    before, fusion, after = divide(recipe)
    Runner(Recipe(RECIPE, before)).apply(program, before)
    return CapturedStep(program, fusion, after)


def divide(recipe: str | Recipe) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
    """The steps of a recipe before its fusion, that one, and those behind it. Raises DaceoptError where there is none
    behind the derivative."""
    chosen = recipes.get(recipe) if isinstance(recipe, str) else recipe
    steps = chosen.with_differentiation().resolve()
    names = [step.name for step in steps]
    if FUSION not in names or "differentiate" not in names[: names.index(FUSION)]:
        raise DaceoptError(f"recipe {chosen.name} has no {FUSION} behind its derivative for a strategy to replace")
    at = names.index(FUSION)
    return steps[:at], steps[at], steps[at + 1 :]
