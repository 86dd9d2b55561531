"""A step of distributed training as this rank takes it, and as it is simulated: for one timeline above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from daceopt.cost.rates import rates
from daceopt.distributed.search import allreduce_measurement, estimator_training
from daceopt.distributed.search.step_capture import capture
from daceopt.distributed.search.step_simulator import StepEvent
from daceopt.distributed.search.strategy_state import simulate
from daceopt.distributed.search.timed_step import time_step
from daceopt.explore.report.built_program import BuiltProgram, Times
from daceopt.ir.nodes.collective import AgreementWait, CollectiveStart, CollectiveWait

if TYPE_CHECKING:
    from torch import nn

    from daceopt.distributed.search.strategy import Strategy
    from daceopt.ir.graph.graph import Graph
    from daceopt.training.training_step import TrainingStep

RUNS = 7


def measure(step: TrainingStep, *arguments: object, runs: int = RUNS) -> list[StepEvent]:
    """What happens when in a compiled step on this rank, of the shortest of ``runs``: nodes in turn, and exchanges from
    their start to the end of their wait. All ranks call it; parameters and state are updated by two steps.

    Raises CaptureError where the step is no program, and what a step raises.
    """
    step(*arguments)
    with step.observe() as calls:
        step(*arguments)
    program, inputs = calls[-1]
    graphs = program.pair.graphs.directions()
    built = BuiltProgram.of(program.pair)
    own = {k: t.detach().clone(memory_format=torch.contiguous_format) for k, t in enumerate(inputs)}
    runs_times = [built.times(own) for _ in range(runs)]
    shortest = min(runs_times, key=lambda times: sum(sum(t.values()) for t in times))
    return events(graphs[0][0], shortest[0])


def events(graph: Graph, times: Times) -> list[StepEvent]:
    """Nodes in the order in which they ran, for so long; ``times``: seconds by the first array that a node writes."""
    clock, began, timeline = 0.0, {}, []
    nodes = {name: n for n in graph.nodes() for name in graph.outputs_of(n) if name is not None}
    for name, seconds in times.items():
        start, clock = clock, clock + seconds
        node = nodes.get(name)
        if isinstance(node, CollectiveStart):
            began[graph.writes(node)["Handle"]] = start, f"{node.title} of {len(node.parameters)} tensors"
        if isinstance(node, CollectiveWait):
            at, kind = began.pop(graph.reads(node)["Handle"], (start, type(node).__name__))
            timeline.append(StepEvent("communication", kind, at, clock))
        waits = isinstance(node, (CollectiveWait, AgreementWait))
        timeline.append(StepEvent("waiting" if waits else "computation", name, start, clock))
    return sorted(timeline, key=lambda event: (event.lane, event.start))


def as_simulated(step: nn.Module | TrainingStep, arguments: Sequence[object], strategy: Strategy) -> list[StepEvent]:
    """The same step by what it consists of and all-reduces as measured; all ranks call it.

    ``step``: of the model before ``data_parallel``. Its update is counted among its computations.
    """
    machine = rates().of_cores(1)
    captured = capture(step, arguments, world=strategy.identity.world)
    estimate = estimator_training.load(machine).estimate(machine)
    timed = time_step(captured, estimate, allreduce_measurement.measure())
    return simulate(timed.problem, strategy, timed.groups).timeline()


def both(
    step: TrainingStep, plain: TrainingStep, arguments: Sequence[object], strategy: Strategy
) -> Mapping[str, list[StepEvent]]:
    """``step`` of a model of ``data_parallel`` as measured, and as ``plain``, of the model before, is simulated."""
    return {"measured": measure(step, *arguments), "simulated": as_simulated(plain, arguments, strategy)}
