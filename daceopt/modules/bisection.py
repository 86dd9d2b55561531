"""Which step of a recipe breaks a module: its forward and backward graphs, in the call that is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from daceopt.ir.control.program import Program
from daceopt.ir.scalar import types
from daceopt.modules.captured import CapturedGraph, capture_graphs
from daceopt.modules.options import Options
from daceopt.passes.bisect import Guilty, bisect
from daceopt.passes.recipe import recipes
from daceopt.runtime.tensors import to_numpy


def bisect_module(
    module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], options: Options, built: bool
) -> Guilty | None:
    """The first step of the options' recipe that breaks one of the graphs of ``module(*args, **kwargs)``, on the values
    of that call; None where none does. The call runs on a copy.

    Raises CaptureError where the module cannot be copied, and what the call itself raises.
    """
    recipe = recipes.get(options.recipe) if isinstance(options.recipe, str) else options.recipe
    captured = capture_graphs(module, args, kwargs, replace(options, dynamic=False), recipe.target)
    candidates = (bisect(recipe, *_subject(graph), built) for graph in captured.graphs)
    return next((guilty for guilty in candidates if guilty is not None), None)


def _subject(captured: CapturedGraph) -> tuple[Program, dict[str, Any]]:
    """The program of a graph, and the arrays of the call by the names of its inputs."""
    graph = captured.imported.graph
    tensors = zip(graph.inputs, captured.tensors, strict=True)
    feeds = {name: to_numpy(tensor, types.to_numpy(graph.dtype(name))) for name, tensor in tensors}
    return Program.of(graph, captured.imported.gradients), feeds
