"""Machines of the size that a test wants."""

from __future__ import annotations

from daceopt.cost.machines import Buffer, MachineModel, Unit


def tiny(local: int, shared: int = 1 << 30, clusters: int = 1, cores: int = 8, float_bytes: int = 4) -> MachineModel:
    """``local``: bytes of the local buffers of a cluster together."""
    unit = Unit("all", ("product", "multiply-accumulate", "element-wise"), 1e11)
    buffers = Buffer(local // cores, 1e12), Buffer(shared, 1e11), Buffer(1 << 40, 1e10)
    return MachineModel("tiny", clusters, cores, (unit,), *buffers, 1e9, float_bytes=float_bytes)
