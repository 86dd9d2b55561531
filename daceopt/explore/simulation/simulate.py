"""``simulate``: what a model would take on an accelerator with scratchpads; nothing is compiled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from daceopt.cost import machines
from daceopt.cost.machines import MachineModel
from daceopt.cost.simulator import Policy, run
from daceopt.errors import DaceoptError
from daceopt.explore.simulation.scratchpad_plans import Planned, fastest
from daceopt.explore.simulation.simulation_report import SimulationReport
from daceopt.ir.control.imported import Imported
from daceopt.ir.graph.graph import Graph
from daceopt.modules.frozen import freeze
from daceopt.passes.feeds import random_inputs
from daceopt.passes.recipe import Recipe, recipes
from daceopt.programs import derivation

_PLANNED = "graphturbo"
"""The recipe that is a choice among plans here: where software places data, instances are nodes and not loops."""


def simulate(
    model: object,
    *inputs: object,
    machine: str | MachineModel = "stcp920",
    recipe: str | Recipe = "graphturbo",
    keep: str = "local",
    pipelined: bool = True,
    spill: str = "longest",
    **kwargs: object,
) -> SimulationReport:
    """Schedule one call of a model for a machine, run it there in simulation, and report where everything was and when.

    ``model``: a module, which is taken in eval mode with its weights as constants; an ONNX file's path, bytes or proto;
    or a graph, which is taken as it is, order, sub-graphs and placements included. ``inputs`` and ``kwargs``: those of
    a call, with the data of one cluster: the clusters of a machine work on data of their own and share its memory. A
    graph or an ONNX file gets random ones where none are given.

    ``machine``: a name or file of ``cost.machines``, or a model of one. ``recipe``: ``graphturbo`` is the
    fastest of several plans here, with and without instances, and the report says which; ``graphturbo-scratchpad`` has
    instances in any case; ``layer-wise`` is the baseline, one kernel per layer with all results in memory. ``keep``,
    ``pipelined``, ``spill``: parts of the generation of kernels that can be switched off, as of
    :class:`daceopt.cost.simulator.Policy`.

    Raises DaceoptError, with the reason, where the model is no single graph, cannot be imported, or has open sizes that
    the inputs do not settle.
    """
    target = machines.get(machine).cluster
    policy, start = Policy(keep, pipelined, spill), time.perf_counter()
    if isinstance(model, Graph):
        graph, title = model.copy(), model.name
        values = _values(graph, inputs)
        scheduled = time.perf_counter() - start
        planned = Planned(graph, (), run(graph, target, _sizes(graph, values), policy), "as it is")
    else:
        imported, arguments, title = _import(model, inputs, kwargs)
        values, planned = _schedule(imported, arguments, recipe, target, policy)
        scheduled = time.perf_counter() - start
    return SimulationReport(
        title, planned.run, policy, scheduled, planned.graph, values, planned.history, planned.choice
    )


def _schedule(
    imported: Imported, arguments: Sequence[object], recipe: str | Recipe, target: MachineModel, policy: Policy
) -> tuple[dict[str, np.ndarray], Planned]:
    """The arrays of the inputs, and the graph as the recipe schedules it, with its run."""
    with machines.assume(target):
        first = "layer-wise" if recipe == _PLANNED else recipe
        derived = derivation.derive(imported, recipes.get(first) if isinstance(first, str) else first)
    graph, history = derived.forward, tuple(derived.history)
    values = _values(graph, arguments)
    sizes = _sizes(graph, values)
    if recipe != _PLANNED:
        return values, Planned(graph, history, run(graph, target, sizes, policy), "as the recipe has it")
    fastest_plan = fastest(graph, target, sizes, policy)
    return values, replace(fastest_plan, history=(*history, *fastest_plan.history))


def _import(
    model: object, inputs: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Imported, Sequence[Any], str]:
    """The graph of operators, the arrays for its inputs, and what to call it."""
    if isinstance(model, nn.Module):
        with _modes_kept(model):
            frozen = freeze(type(model).__name__, model, inputs, kwargs)
        return frozen.load(), frozen.feeds, type(model).__name__
    if isinstance(model, str | os.PathLike | bytes) or hasattr(model, "graph"):
        from daceopt.capture.onnx.file import load
        from daceopt.capture.onnx.importer import import_model

        title = os.fspath(model) if isinstance(model, str | os.PathLike) else "ONNX model"
        return Imported(import_model(load(model))), inputs, str(title)
    raise TypeError(f"simulate takes an nn.Module, an ONNX file or a Graph, not {type(model).__name__}")


@contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    """The module is looked at in eval mode, and left in its own."""
    modes = [(m, m.training) for m in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _values(graph: Graph, inputs: Sequence[object]) -> dict[str, np.ndarray]:
    if not inputs:
        return random_inputs(graph)
    if len(inputs) != len(graph.inputs):
        raise DaceoptError(f"the graph takes {len(graph.inputs)} inputs ({', '.join(graph.inputs)}), not {len(inputs)}")
    arrays = (x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in inputs)
    return dict(zip(graph.inputs, arrays))


def _sizes(graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {symbol: int(values[name].shape[axis]) for symbol, (name, axis) in graph.symbols.items() if name in values}
