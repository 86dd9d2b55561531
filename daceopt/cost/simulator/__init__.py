"""A simulator of accelerators with scratchpads: bytes per memory, overlap of units, cycles (GraphTurbo, OSDI 2023)."""

from __future__ import annotations

from daceopt.cost.simulator.kernel_generation import Kernels
from daceopt.cost.simulator.run import Policy, Run, run

__all__ = ["Kernels", "Policy", "Run", "run"]
