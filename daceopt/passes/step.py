"""The record of one step of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daceopt.ir.scalar.dims import Dim


@dataclass
class Step:
    """What one step of a recipe did.

    Bytes are symbolic if shapes are; ``error`` is the numeric error after the step (with ``verify="numerics"``);
    ``graph`` is the name of the graph, which tells the two directions apart.
    """

    name: str
    level: str
    seconds: float
    sites: list[str]
    near_misses: list[str]
    nodes_before: int
    nodes_after: int
    bytes_before: Dim
    bytes_after: Dim
    error: float | None = None
    graph: str = ""

    def __str__(self) -> str:
        effect = f"{len(self.sites)} sites, {self.nodes_before} -> {self.nodes_after} nodes"
        return f"{self.level:<13} {self.name:<32} {self.seconds * 1e3:8.1f} ms  {effect}"
