"""A machine as GraphTurbo (Zhao et al., OSDI 2023, figure 1) sees it: clusters of cores with units, three memories."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daceopt.ir.scalar import types
from daceopt.ir.scalar.types import DType

WORK = ("product", "multiply-accumulate", "element-wise")
"""Kinds of work: products and dense convolutions; windows and sums within a channel; everything point-wise."""


@dataclass(frozen=True)
class Unit:
    """A kind of compute unit: ``runs``, of :data:`WORK`, at ``rate`` operations per second each; ``count`` of them in
    a cluster (0: one in every core)."""

    name: str
    runs: tuple[str, ...]
    rate: float
    count: int = 0


@dataclass(frozen=True)
class Buffer:
    """A memory of ``size`` bytes, of which ``bandwidth`` bytes per second are read and written together; ``reserved``
    bytes of it are for tiles of weights that are on their way (GraphTurbo, section 2.2)."""

    size: int
    bandwidth: float
    reserved: int = 0


@dataclass(frozen=True)
class MachineModel:
    """``clusters`` (d) of ``cores`` (c) each, and the units of a cluster.

    ``local``: the buffer of one core (LB); ``shared``: that of one cluster (GB); ``memory``: that of the machine (DDR).
    ``clock``: cycles per second. ``launch``: seconds from the end of one kernel to the start of the next.
    ``float_bytes``: what the machine stores a floating-point number in, where the graph has no shorter type.
    """

    name: str
    clusters: int
    cores: int
    units: tuple[Unit, ...]
    local: Buffer
    shared: Buffer
    memory: Buffer
    clock: float
    launch: float = 0.0
    float_bytes: int = 4

    @property
    def local_size(self) -> int:
        """Bytes of the local buffers of one cluster together."""
        return self.cores * self.local.size

    def room(self, level: str) -> int:
        """Bytes of a cluster's buffers of a level that results may take."""
        buffer, count = {"local": (self.local, self.cores), "shared": (self.shared, 1), "memory": (self.memory, 1)}[
            level
        ]
        return (buffer.size - buffer.reserved) * count

    @property
    def cluster(self) -> MachineModel:
        """One cluster as a machine of its own, with its share of the memory while all work on data of their own."""
        memory = Buffer(self.memory.size // self.clusters, self.memory.bandwidth / self.clusters)
        return replace(self, clusters=1, memory=memory)

    def count(self, unit: Unit) -> int:
        """How many of a unit there are in a cluster."""
        return unit.count or self.cores

    def unit(self, work: str) -> Unit:
        """The unit that does ``work``: of those that can, the one with the highest rate in a cluster."""
        return max((u for u in self.units if work in u.runs), key=lambda u: u.rate * self.count(u))

    def seconds(self, work: str, operations: float, cores: int) -> float:
        """The time of ``operations`` of one kind on so many cores of one cluster."""
        unit = self.unit(work)
        return operations / (unit.rate * (unit.count or min(cores, self.cores)))

    def itemsize(self, dtype: DType) -> int:
        """Bytes of one element of a DaCe type as the machine stores it."""
        size = int(dtype.bytes)
        return min(size, self.float_bytes) if types.is_float(dtype) else size
