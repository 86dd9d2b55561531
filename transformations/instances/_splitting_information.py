"""Splitting information of a sub-graph, and the best split: GraphTurbo, algorithm 1 and equation 1."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Any, TypeVar

from daceopt.cost.machines import MachineModel

Key = TypeVar("Key", bound=Hashable)

PLANNED = ("local", "shared")
"""The buffers for which instances can be sized, from the fastest."""


@dataclass(frozen=True)
class Budget:
    """What an instance must fit into: ``bytes`` of one of ``PLANNED``, on a machine.

    An instance runs on all cores of a cluster, which divide its other axes among them (section 2.1): each of the local
    buffers has a part of it, so they count together.
    """

    machine: MachineModel
    level: str

    @property
    def bytes(self) -> int:
        return self.machine.room(self.level)


@dataclass(frozen=True)
class Way:
    """One way to split all nodes of a group: each by the axis that the others' axes lead to.

    ``extent``: the greatest common divisor of the extents of these axes, which factors divide; ``depth``: the axis of
    the result; ``halo``: what neighbouring instances both need, as a share of the axis; ``whole``: bytes of computed
    arrays of which every instance reads all.
    """

    extent: int
    depth: int
    halo: float
    whole: int

    def then(self, following: Way) -> Way:
        """Both groups together, of which ``following`` has the result."""
        halo, whole = self.halo + following.halo, max(self.whole, following.whole)
        return Way(gcd(self.extent, following.extent), following.depth, halo, whole)


@dataclass(frozen=True)
class AxisSplit:
    """An element of the splitting information: (split_d, n_d, f_d, d) for one axis, and what it takes.

    ``count``: the operations that are split; ``factor``: into how many instances on each of ``clusters``; ``axis``: of
    the result (-1: it is not split at all); ``way``: what the group calls it; ``footprint``: bytes of an instance.
    """

    count: int
    factor: int
    axis: int
    clusters: int = 1
    halo: float = 0
    footprint: int = 0
    way: Any = None

    @property
    def rank(self) -> tuple[Any, ...]:
        """What equation 1 maximizes in lexicographic order.

        Before it: the clusters that share the work (section 5.1), and that neighbours need nothing of each other, for
        what they share is computed twice or kept.
        """
        return self.clusters, self.halo == 0, self.count, -self.factor, -self.axis


def best_of(splits: Iterable[AxisSplit]) -> AxisSplit | None:
    """Equation 1; None where no instance fits."""
    return max(splits, key=lambda split: split.rank, default=None)


def information(ways: Mapping[Key, Way], peak: float, count: int, budget: Budget) -> dict[Key | None, AxisSplit]:
    """Algorithm 1: for each way to split a group of ``count`` nodes that has ``peak`` bytes alive, the smallest factor
    whose instances fit.

    All nodes are split, or a way is none of the group: an intermediate array that the axis does not divide would be
    computed by every instance. A group that no axis divides may fit as a whole (a factor of 1, of the way None).
    """
    splits = ((key, _split(key, way, peak, count, budget)) for key, way in ways.items())
    by_key: dict[Key | None, AxisSplit] = {key: split for key, split in splits if split is not None}
    if by_key or peak > budget.bytes:
        return by_key
    return {None: AxisSplit(0, 1, -1, footprint=int(peak))}


def _split(key: object, way: Way, peak: float, count: int, budget: Budget) -> AxisSplit | None:
    """Shared by all clusters where the axis can be."""
    for clusters in sorted({budget.machine.clusters, 1}, reverse=True):
        for factor in factors(way.extent // clusters, budget.machine.cores) if way.extent % clusters == 0 else ():
            needed = footprint(way, peak, factor * clusters)
            if needed <= budget.bytes:
                return AxisSplit(count, factor, way.depth, clusters, way.halo, needed, key)
    return None


LIGHT = 8
"""Instances are light where this many fit, with what all of them read counted once."""


def lighter(best: AxisSplit, ways: Mapping[Key, Way], peak: float, budget: Budget) -> dict[Key | None, AxisSplit]:
    """For each way without halo to split a group whose best split is ``best`` more finely, the smallest factor of which
    instances are light."""
    lighter_splits: dict[Key | None, AxisSplit] = {}
    for key, way in ways.items():
        if way.halo or way.extent % best.clusters:
            continue
        for factor in factors(way.extent // best.clusters, budget.machine.cores):
            needed = footprint(way, peak, factor * best.clusters)
            if factor >= best.factor and needed <= min(budget.bytes, way.whole + budget.bytes / LIGHT):
                lighter_splits[key] = AxisSplit(best.count, factor, way.depth, best.clusters, 0, needed, key)
                break
    return lighter_splits


def finer(split: AxisSplit, way: Way, peak: float, budget: Budget) -> AxisSplit | None:
    """The same split with the next factor that is at least twice as large; None where none divides the axis, or
    neighbours share elements, which more instances would compute more often."""
    if way.halo:
        return None
    possible = factors(way.extent // split.clusters, budget.machine.cores)
    factor = next((f for f in possible if f >= 2 * split.factor), None)
    if factor is None:
        return None
    return replace(split, factor=factor, footprint=footprint(way, peak, factor * split.clusters))


def footprint(way: Way, peak: float, instances: int) -> int:
    """Bytes of one instance: its share of what is alive, and all of what every instance reads."""
    share = min(1 / instances + (way.halo if instances > 1 else 0), 1)
    return ceil(max(peak - way.whole, 0) * share) + way.whole


def factors(extent: int, cores: int) -> list[int]:
    """Line 4 of algorithm 1: first those that leave the cores to other axes in equal parts (divisors of their number,
    or powers of two, for 132 cores have few divisors), then all that give each core a part of another axis; all that
    divide ``extent``."""
    divisors = {v for k in range(1, int(extent**0.5) + 1) if extent % k == 0 for v in (k, extent // k)}
    return sorted(v for v in divisors if v >= cores or cores % v == 0 or v & (v - 1) == 0)
