"""What a graph costs: bytes moved, flops, the machine's limits, and measurements."""

from __future__ import annotations

from daceopt.cost import machines
from daceopt.cost.limits import Limits
from daceopt.cost.machine import Machine, this_machine
from daceopt.cost.movement import Movement, data_movement
from daceopt.cost.work import NodeCost, flops, roofline

__all__ = [
    "Limits",
    "Machine",
    "Movement",
    "NodeCost",
    "data_movement",
    "flops",
    "machines",
    "roofline",
    "this_machine",
]
