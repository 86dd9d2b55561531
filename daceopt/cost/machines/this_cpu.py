"""The CPU that runs this process as a hierarchy: its second cache is the local buffer, its third the shared one."""

from __future__ import annotations

from daceopt.cost.machine import Machine
from daceopt.cost.machines.hierarchy import Buffer, MachineModel, Unit
from daceopt.cost.rates import rates

_CLOCK = 1e9  # cycles of a nanosecond: what counts is seconds, and the clock of a CPU is none
_MEMORY = 1 << 40  # bytes: a process that has less fails elsewhere
_UNKNOWN = {"l2": 1 << 20, "l3": 16 << 20}  # where nothing is known of the caches


def model_of(machine: Machine) -> MachineModel:
    """One cluster of the cores that torch may use; rates and bandwidths as ``cost.this_machine`` and ``cost.rates``
    measured them."""
    measured, cores = rates(), machine.cores
    local, shared = machine.l2 or _UNKNOWN["l2"], machine.l3 or _UNKNOWN["l3"]
    vector = Unit("vector", ("multiply-accumulate", "element-wise"), 1 / measured.operation)
    return MachineModel(
        machine.name,
        1,
        cores,
        (Unit("product", ("product",), machine.flops / cores), vector),
        Buffer(local, machine.bandwidth(local) / cores),
        Buffer(shared, machine.bandwidth(shared)),
        Buffer(_MEMORY, machine.memory_bandwidth),
        _CLOCK,
        measured.call + measured.region,
    )
