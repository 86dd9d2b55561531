"""Which step of a recipe breaks a module: its forward and backward graphs, in the call that is given."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from daceopt.capture.torch import importing
from daceopt.errors import CaptureError
from daceopt.ir.control.program import Program
from daceopt.ir.scalar import types
from daceopt.modules import frames
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import Break
from daceopt.modules.dispatch import first_line
from daceopt.modules.observe import own_forward
from daceopt.modules.options import Options
from daceopt.passes.bisect import Guilty, bisect
from daceopt.passes.recipe import Recipe, recipes
from daceopt.programs.stats import Stats
from daceopt.runtime.binding import Binding
from daceopt.runtime.tensors import to_numpy

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced
    from daceopt.ir.graph.graph import Graph


class _Graphs(Backend):
    """Keeps the graphs that Dynamo finds with their arguments, and runs them in eager PyTorch."""

    def __init__(self, options: Options) -> None:
        super().__init__(options, Stats(), self._leave)
        self.found: list[tuple[Traced, list[Any]]] = []

    def _leave(self, reason: Break, error: BaseException) -> None:
        """What has no graph runs as it is."""

    def add(self, traced: Traced, inputs: Sequence[Any]) -> Any:
        kept = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        self.found.append((traced, kept))
        return traced.graph.forward


def bisect_module(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, built: bool
) -> Guilty | None:
    """The first step of the options' recipe that breaks one of the graphs of ``module(*args, **kwargs)``, on the values
    of that call; None where none does. The call runs on a copy.

    Raises CaptureError where the module cannot be copied, and what the call itself raises.
    """
    try:
        twin, arguments, named = copy.deepcopy((module, list(args), dict(kwargs)))
    except Exception as error:
        raise CaptureError(f"{type(module).__name__} cannot be copied: {first_line(error)}") from error
    backend = _Graphs(options)
    grad = torch.is_grad_enabled() if options.backward is None else options.backward
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.set_grad_enabled(grad):
        frames.compile_frames(own_forward(twin), backend, dynamic=False)(*arguments, **named)
    recipe = recipes.get(options.recipe) if isinstance(options.recipe, str) else options.recipe
    candidates = (_guilty(traced, inputs, recipe, built) for traced, inputs in backend.found)
    return next((guilty for guilty in candidates if guilty is not None), None)


def _guilty(traced: Traced, inputs: Sequence[Any], recipe: Recipe, built: bool) -> Guilty | None:
    imported = importing.load(traced, recipe.target)
    binding = Binding.from_json(imported.notes["binding"])
    program = Program.of(imported.graph, imported.gradients)
    return bisect(recipe, program, _feeds(imported.graph, binding, inputs), built)


def _feeds(graph: Graph, binding: Binding, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """The tensors of the call by the names of the graph's inputs; others get random values."""
    arrays = {}
    for name, (kind, argument) in zip(graph.inputs, binding.inputs):
        value = inputs[argument] if kind == "tensor" else None
        if isinstance(value, torch.Tensor) and not value.is_complex():
            arrays[name] = to_numpy(value.contiguous(), types.to_numpy(graph.dtype(name)))
    return arrays
