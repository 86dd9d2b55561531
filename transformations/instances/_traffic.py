"""How long a grouping moves data, by a model: which buffer instances should be sized for."""

from __future__ import annotations

from daceopt.ir.graph.graph import Graph
from daceopt.transformations.instances._merging import Merging


def seconds(graph: Graph, merging: Merging) -> float:
    """Of all arrays that are computed, written once and read once, of weights, which each instance reads from memory,
    and of one launch for each instance.

    What only one group reads and writes stays in the buffer that its instances are sized for; everything else goes
    through the next larger one that has room for it.
    """
    machine, level = merging.budget.machine, merging.budget.level
    inner = machine.local.bandwidth * machine.cores if level == "local" else machine.shared.bandwidth
    total = 0.0
    for name, size, inside in merging.arrays():
        fits = level == "local" and size <= machine.clusters * machine.shared.size
        outer = machine.clusters * machine.shared.bandwidth if fits else machine.memory.bandwidth
        stays = inside and not graph.is_kept(name)
        total += 2 * size / (inner * machine.clusters if stays else outer)
    splits = [(group.best, group.weights) for group in merging.groups.values() if group.best is not None]
    weights = sum(split.factor * split.clusters * size for split, size in splits)
    return total + weights / machine.memory.bandwidth + sum(split.factor for split, _ in splits) * machine.launch
