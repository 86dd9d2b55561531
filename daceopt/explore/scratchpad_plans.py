"""Ways to schedule a network for an accelerator with scratchpads, of which the simulator finds the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daceopt.cost import machines
from daceopt.cost.machines import MachineModel
from daceopt.cost.simulator import Policy, Run, run
from daceopt.explore.units import duration
from daceopt.passes.recipe import Recipe, recipes

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.passes.step import Step

MOST = {"shared": 2_000, "local": 500}
"""Nodes of all instances, by the buffer that they are sized for: plans of more take too long to split. Local buffers
have so far been the better ones of small networks only."""


@dataclass(frozen=True)
class Planned:
    """A plan's graph, the steps that made it, and its simulated run; ``choice``: why it is this one."""

    graph: Graph
    history: tuple[Step, ...]
    run: Run
    choice: str


def fastest(layers: Graph, target: MachineModel, sizes: Mapping[str, int], policy: Policy) -> Planned:
    """The plan for ``layers``, a graph that the recipe ``layer-wise`` made, that takes the least time on ``target``.

    Instances sized for the shared buffer of a cluster, or for its local ones; no instances, for which results stay on
    the chip as far as there is room; or results in memory, as layer-wise scheduling has it, which is therefore never
    faster.
    """
    found: dict[str, tuple[Graph, tuple[Step, ...], Run]] = {}
    with machines.assumed(target):
        for title, (steps, most) in _plans().items():
            graph = layers.copy()
            history = _applied(graph, steps, most)
            if history is not None:
                found[title] = graph, tuple(history), run(graph, target, sizes, policy)
    best = min(found, key=lambda title: found[title][2].seconds)
    shown = ", ".join(f"{title} {duration(one.seconds)}" for title, (_, _, one) in found.items())
    return Planned(*found[best], f"{best} ({shown})")


def _plans() -> dict[str, tuple[tuple[str, ...], int]]:
    """Title -> steps behind the layers, and how many nodes may be in instances; of equal times the first wins."""
    instances = recipes.get("graphturbo-scratchpad").steps[len(recipes.get("layer-wise").steps) + 1 :]
    sized = {
        f"instances for {level} buffers": ((f"instance-grouping{{buffer={level!r}}}", *map(str, instances)), most)
        for level, most in MOST.items()
    }
    return {**sized, "no instances": (("core-binding",), 0), "results in memory": ((), 0)}


def _applied(graph: Graph, steps: tuple[str, ...], most: int) -> list[Step] | None:
    """What the steps did; None where more than ``most`` nodes would be in instances."""
    first = Recipe("plan", steps[:1]).run(graph)
    groups = [group for group in graph.sub_graphs if group.count > 1]
    if sum(group.count * len(group.nodes(graph)) for group in groups) > most:
        return None
    return [*first, *Recipe("plan", steps[1:]).run(graph)]
