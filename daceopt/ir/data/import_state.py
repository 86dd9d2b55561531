"""What the front end and the lowerings know of the model that a graph comes from; the graph means the same without."""

from __future__ import annotations

from dataclasses import dataclass, field

from daceopt.ir.scalar.dims import Dim


@dataclass
class ImportState:
    """``names``: array -> its name in the model; ``opset``: operator domain -> version.

    ``shape_values``: contents of integer arrays that are functions of the sizes. ``trips``: counters of loops around
    this body -> iterations at most, where known. ``speculative``: may shapes be made simpler by further assumptions?
    ``precision``: how exact products of float32 have to be, as ``torch.set_float32_matmul_precision`` names it.
    """

    names: dict[str, str] = field(default_factory=dict)
    opset: dict[str, int] = field(default_factory=dict)
    shape_values: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    trips: dict[str, int] = field(default_factory=dict)
    speculative: bool = False
    precision: str = "highest"

    def copy(self) -> ImportState:
        """One of its own, with the same contents."""
        tables = dict(self.names), dict(self.opset), dict(self.shape_values), dict(self.trips)
        return ImportState(*tables, self.speculative, self.precision)
