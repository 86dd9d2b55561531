"""Where arrays live on a machine with scratchpads, and how they are dealt to its cores.

The result of GraphTurbo's algorithm 4 (Zhao et al., OSDI 2023), kept with the graph by the names of arrays, so that it
survives copies, fusions and replacements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from daceopt.ir.data.arrays import Arrays

LEVELS = ("local", "shared", "memory")
"""From the fastest: the buffers of cores (LB), that of a cluster (GB), DDR."""


@dataclass(frozen=True)
class Placement:
    """``level``: of :data:`LEVELS`; ``binding``: into how many cores each dimension is divided, () where it is not."""

    level: str
    binding: tuple[int, ...] = ()

    @property
    def cores(self) -> int:
        """How many cores have some of it, or compute some of it."""
        return prod(self.binding)


def check(arrays: Arrays, placements: Mapping[str, Placement]) -> None:
    """Raise ValueError for a name that is no array of its own, an unknown level, or factors that fit no shape."""
    for name, placement in placements.items():
        if not arrays.has(name) or arrays.is_view(name):
            raise ValueError(f"placement of {name}: it is a view, or no array of the graph")
        if placement.level not in LEVELS:
            raise ValueError(f"placement of {name}: {placement.level!r} is none of {', '.join(LEVELS)}")
        rank, factors = len(arrays.shape(name)), placement.binding
        if factors and (len(factors) != rank or any(not isinstance(n, int) or n < 1 for n in factors)):
            raise ValueError(f"placement of {name}: binding {factors}; expected {rank} whole numbers above 0")
