"""Plans for accelerators: instances become smaller where results find no room, as long as the simulator gains by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from daceopt.cost import machines
from daceopt.cost.machines import MachineModel
from daceopt.cost.simulator import Policy, Run, run
from daceopt.explore.simulation.scratchpad_plans import Planned, fastest
from daceopt.explore.simulation.spill_charges import SpillCharges
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.passes.feeds import random_inputs
from daceopt.passes.recipe import Recipe
from tests.transformations.instances.networks import stages

STEPS = ("instance-splitting", "instance-ordering", "core-binding")


def _small(shared: int, bandwidth: float = 1e8) -> MachineModel:
    """A cluster whose shared buffer has ``shared`` bytes for results, and whose memory is slow."""
    stcp = machines.get("stcp920").cluster
    local = replace(stcp.local, size=64, reserved=16)
    memory = replace(stcp.memory, bandwidth=bandwidth)
    return replace(stcp, name="small", local=local, shared=replace(stcp.shared, size=shared, reserved=0), memory=memory)


def _grouped(shared: int, finer: tuple[int, ...]) -> tuple[Graph, Run]:
    graph, machine = stages(16, 512, 4), _small(shared)
    with machines.assume(machine):
        Recipe("plan", (f"instance-grouping{{buffer='shared', finer={finer!r}}}", *STEPS)).run(graph)
    return graph, run(graph, machine)


def _fastest(graph: Graph, machine: MachineModel) -> Planned:
    return fastest(graph, machine, {}, Policy())


@pytest.mark.parametrize("shared", [8000, 13_000])
def test_instances_become_smaller_where_results_find_no_room(shared: int) -> None:
    graph = stages(16, 512, 4)
    found = _fastest(graph, _small(shared))
    assert found.choice.startswith("smaller instances where results found no room (instances for shared buffers")
    assert "finer=(" in found.history[0].name
    plain, before = _grouped(shared, ())
    assert found.run.seconds < before.seconds
    assert SpillCharges(found.graph, found.run).total < SpillCharges(plain, before).total
    values = random_inputs(graph)
    expected, ours = interpret(graph, values), interpret(found.graph, values)
    for name in graph.outputs:
        np.testing.assert_array_equal(ours[name], expected[name])


def test_they_stay_as_they_are_where_that_is_no_faster() -> None:
    found = _fastest(stages(16, 512, 4), _small(13_000, bandwidth=1e12))
    assert "smaller instances" in found.choice and not found.choice.startswith("smaller")


def test_where_everything_has_room_none_are_tried() -> None:
    assert "smaller instances" not in _fastest(stages(16, 512, 4), _small(1 << 20)).choice


def test_bytes_are_charged_to_what_runs_and_what_reads() -> None:
    """What spills is what instances of the first stages leave to the next, which is one of the sub-graphs that read."""
    graph, found = _grouped(13_000, ())
    charges = SpillCharges(graph, found)
    spilled = [name for name in found.spilled if found.placements[name].level == "memory"]
    itemsize = found.machine.float_bytes
    assert charges.total == sum(int(graph.size(name)) * itemsize for name in spilled) > 0
    assert sum(charges.running.values()) == charges.total <= sum(charges.reading.values())
    assert {*charges.running, *charges.reading} <= set(range(len(graph.sub_graphs)))
    for name in spilled:
        readers = [
            k for k, group in enumerate(graph.sub_graphs) for node in group.nodes(graph) if _reads(graph, node, name)
        ]
        assert readers and all(charges.reading[k] >= int(graph.size(name)) * itemsize for k in readers)


def _reads(graph: Graph, node: object, name: str) -> bool:
    return any(name in graph.sources(read) for read in graph.inputs_of(node) if read)
