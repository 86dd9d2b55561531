"""Ways to schedule a network for an accelerator with scratchpads, of which the simulator finds the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from daceopt.cost import machines
from daceopt.cost.machines import MachineModel
from daceopt.cost.simulator import Policy, Run, run
from daceopt.explore.report.units import duration
from daceopt.explore.simulation.spill_charges import SpillCharges
from daceopt.passes.recipe import Recipe, recipes

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.passes.step import Step

MOST = {"shared": 2_000, "local": 500}
"""Nodes of all instances, by the buffer that they are sized for: plans of more take too long to split. Local buffers
have so far been the better ones of small networks only."""


FINER = 1_000
"""Nodes of all instances where these are made smaller for want of room: such plans are simulated several times."""

_ROUNDS, _SLOWER, _LESS = 3, 1.05, 0.75
"""How often instances are made smaller: while that is no slower than this, and leaves this much spilled or less."""


@dataclass(frozen=True)
class Planned:
    """A plan's graph, the steps that made it, and its simulated run; ``choice``: why it is this one."""

    graph: Graph
    history: tuple[Step, ...]
    run: Run
    choice: str


def fastest(layers: Graph, target: MachineModel, sizes: Mapping[str, int], policy: Policy) -> Planned:
    """The plan for ``layers``, a graph that the recipe ``layer-wise`` made, that takes the least time on ``target``.

    Instances sized for the shared buffer of a cluster, or for its local ones; smaller ones where results still found no
    room; no instances, for which results stay on the chip as far as there is room; or results in memory, as layer-wise
    scheduling has it, which is therefore never faster.
    """

    def attempt(title: str, steps: tuple[str, ...], most: int) -> Planned | None:
        graph = layers.copy()
        history = _apply(graph, steps, most)
        return None if history is None else Planned(graph, tuple(history), run(graph, target, sizes, policy), title)

    with machines.assume(target):
        plans = [plan for title, (steps, most) in _plans().items() if (plan := attempt(title, steps, most)) is not None]
        shared = next((plan for plan in plans if plan.choice == _title("shared")), None)
        if shared is not None:
            plans += _finer(shared, lambda steps: attempt(_FINER, steps, FINER))
    best = min(plans, key=lambda plan: plan.run.seconds)
    shown = ", ".join(f"{plan.choice} {duration(plan.run.seconds)}" for plan in _one_each(plans))
    return replace(best, choice=f"{best.choice} ({shown})")


def _one_each(plans: Iterable[Planned]) -> Iterable[Planned]:
    """The fastest plan of each title."""
    best: dict[str, Planned] = {}
    for plan in plans:
        best[plan.choice] = min(best.get(plan.choice, plan), plan, key=lambda one: one.run.seconds)
    return best.values()


_FINER = "smaller instances where results found no room"


def _finer(start: Planned, tried: Callable[[tuple[str, ...]], Planned | None]) -> list[Planned]:
    """Plans with more instances of those sub-graphs that keep results out of the buffers: of those that run while a
    result finds no room; then, where that alone is fast enough and makes room, of its readers as well."""
    limit, spilled = _SLOWER * start.run.seconds, SpillCharges(start.graph, start.run).total
    plans = _path(start, limit, tried, readers=False)
    if plans and plans[0].run.seconds <= limit and SpillCharges(plans[0].graph, plans[0].run).total <= _LESS * spilled:
        plans += _path(start, limit, tried, readers=True)
    return plans


def _path(
    start: Planned, limit: float, tried: Callable[[tuple[str, ...]], Planned | None], readers: bool
) -> list[Planned]:
    """Each with smaller instances than the one before, which has left less without room and was fast enough."""
    plans: list[Planned] = []
    finer: tuple[int, ...] = ()
    before = SpillCharges(start.graph, start.run)
    while len(plans) < _ROUNDS:
        charged = before.running.keys() | (before.reading.keys() if readers else set())
        finer = (*finer, *sorted(charged))
        plan = tried(_instances("shared", finer)) if charged else None
        if plan is None:
            break
        plans.append(plan)
        after = SpillCharges(plan.graph, plan.run)
        if after.total > _LESS * before.total or plan.run.seconds > limit:
            break
        before = after
    return plans


def _title(level: str) -> str:
    return f"instances for {level} buffers"


def _instances(level: str, finer: tuple[int, ...] = ()) -> tuple[str, ...]:
    """The steps behind the layers that split them into instances for a buffer."""
    behind = recipes.get("graphturbo-scratchpad").steps[len(recipes.get("layer-wise").steps) + 1 :]
    options = f"buffer={level!r}, finer={finer!r}" if finer else f"buffer={level!r}"
    return f"instance-grouping{{{options}}}", *map(str, behind)


def _plans() -> dict[str, tuple[tuple[str, ...], int]]:
    """Title -> steps behind the layers, and how many nodes may be in instances; of equal times the first wins."""
    sized = {_title(level): (_instances(level), most) for level, most in MOST.items()}
    return {**sized, "no instances": (("core-binding",), 0), "results in memory": ((), 0)}


def _apply(graph: Graph, steps: tuple[str, ...], most: int) -> list[Step] | None:
    """What the steps did; None where more than ``most`` nodes would be in instances."""
    first = Recipe("plan", steps[:1]).run(graph)
    groups = [group for group in graph.sub_graphs if group.count > 1]
    if sum(group.count * len(group.nodes(graph)) for group in groups) > most:
        return None
    return [*first, *Recipe("plan", steps[1:]).run(graph)]
