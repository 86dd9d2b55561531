"""What a graph costs: bytes moved, flops, the machine's limits, and measurements."""

from __future__ import annotations

from daceopt.cost.movement import data_movement

__all__ = ["data_movement"]
