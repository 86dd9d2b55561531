"""One run of a graph on one cluster: where its arrays live, what moves, and when every tile of every layer runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from daceopt.cost.machines.hierarchy import MachineModel
from daceopt.cost.simulator.allocation import LONGEST, SPILLS, Lifetime, allocate
from daceopt.cost.simulator.kernel_generation import Kernels, Layer
from daceopt.cost.simulator.tile_pipeline import OVERLAPS, Event, Fetch, Pipeline, Task
from daceopt.errors import DaceoptError
from daceopt.ir.graph.placements import LEVELS, Placement

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

LOCAL, SHARED, MEMORY = LEVELS
EXCHANGE = "exchange"  # between the cores of a cluster, where they are dealt an array in different ways
_FEWEST, _MOST = 4, 16  # tiles of a layer: fewer overlap nothing, more change nothing


@dataclass(frozen=True)
class Policy:
    """What the generator of kernels does; the defaults are GraphTurbo's, others its variants (figure 15).

    ``keep``: the fastest level in which results of layers may stay (``memory``: none does, as with layer-wise
    scheduling). ``pipelined``: weights are fetched while earlier layers are under way, and tiles of later layers run
    where that is faster, for it takes more room (section 4.4). ``spill``: which tensor leaves a buffer that is full
    (section 4.3).
    """

    keep: str = LOCAL
    pipelined: bool = True
    spill: str = LONGEST

    def __post_init__(self) -> None:
        if self.keep not in LEVELS or self.spill not in SPILLS:
            options = f"keep={self.keep!r}, spill={self.spill!r}"
            raise DaceoptError(f"{options}: expected one of {', '.join(LEVELS)}, and of {', '.join(SPILLS)}")


@dataclass(frozen=True)
class Run:
    """What happened.

    ``placements``: each array that a layer writes -> where it was; ``promoted``: arrays that are given and were kept in
    the shared buffer between their uses; ``spilled``: arrays that found no room in the buffer that they wanted.
    ``traffic``: bytes read and written per level, and between cores (``exchange``). ``occupancy``: bytes that are alive
    in the local and in the shared buffers of the cluster while each layer runs. ``events``: what each unit did when.
    """

    machine: MachineModel
    layers: tuple[Layer, ...]
    kernels: int
    placements: Mapping[str, Placement]
    promoted: tuple[str, ...]
    spilled: tuple[str, ...]
    traffic: Mapping[str, int]
    occupancy: tuple[tuple[int, int], ...]
    events: tuple[Event, ...]
    seconds: float

    @property
    def cycles(self) -> int:
        return ceil(self.seconds * self.machine.clock)

    @cached_property
    def busy(self) -> dict[str, float]:
        """Unit, or way to a memory -> the share of the time in which it works."""
        spent: Counter[str] = Counter()
        for event in self.events:
            spent[event.unit] += event.end - event.start  # type: ignore[assignment]
        return {unit: seconds / self.seconds for unit, seconds in spent.items()} if self.seconds else {}

    def places_by_level(self) -> dict[str, int]:
        """Level -> how many results of layers live there (table 3)."""
        counts = Counter(p.level for p in self.placements.values())
        return {level: counts[level] for level in LEVELS}


def run(
    graph: Graph, machine: MachineModel, sizes: Mapping[str, int] | None = None, policy: Policy | None = None
) -> Run:
    """Simulate one execution of ``graph`` on one cluster of ``machine``, while the others execute the same on data of
    their own (section 2.1): memory is shared by all.

    Nodes run in ``graph.order``; results of layers live where ``graph.placements`` says, as far as there is room; in
    memory where it says nothing. ``sizes``: values of size symbols. Raises DaceoptError where one is missing, and for a
    graph that is divided among clusters.
    """
    divided = max((group.clusters for group in graph.sub_graphs), default=1)
    if divided > 1:
        expected = f"expected what one runs: schedule the data of one for machines.get({machine.name!r}).cluster"
        raise DaceoptError(f"the graph is divided among {divided} clusters; {expected}")
    kernels, policy = Kernels(graph, machine.cluster, sizes), policy or Policy()
    overlaps = OVERLAPS[1:] if policy.pipelined else OVERLAPS[:1]
    return min((_Simulation(kernels, policy, overlap).run() for overlap in overlaps), key=lambda run: run.seconds)


class _Simulation:
    def __init__(self, kernels: Kernels, policy: Policy, overlap: str):
        self.kernels, self.policy, self.overlap = kernels, policy, overlap
        self.graph, self.machine, self.layers = kernels.graph, kernels.machine, kernels.layers
        self.spilled: list[str] = []
        self._lives: dict[str, Lifetime] = {}  # of what stays in a buffer
        self._late: set[str] = set()  # there is no room for them while the task before theirs runs
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for k, layer in enumerate(self.layers):
            for name in (*layer.reads, *layer.writes):
                self.first.setdefault(name, k)
                self.last[name] = k

    def run(self) -> Run:
        levels = self._place()
        promoted = self._promote(levels)
        traffic: Counter[str] = Counter(dict.fromkeys((*LEVELS, EXCHANGE), 0))
        tasks = [self._task(k, levels, promoted, traffic) for k in range(len(self.layers))]
        outcome = Pipeline(self.machine, self.overlap).run(tasks)
        wished = self.graph.placements
        placements = {n: Placement(level, wished[n].binding if n in wished else ()) for n, level in levels.items()}
        return Run(
            self.machine,
            self.layers,
            self.kernels.count,
            placements,
            tuple(promoted),
            tuple(dict.fromkeys(self.spilled)),
            dict(traffic),
            self._occupancy(levels, promoted),
            tuple(outcome.events),
            outcome.seconds,
        )

    # ---------------------------------------------------------------- where arrays live

    def _place(self) -> dict[str, str]:
        """Level of each array that a layer writes, after spilling."""
        wished, best = self.graph.placements, LEVELS.index(self.policy.keep)
        levels = {}
        for name in (n for layer in self.layers for n in layer.writes):
            level = wished[name].level if name in wished and not self.graph.is_kept(name) else MEMORY
            levels[name] = LEVELS[max(best, LEVELS.index(level))]
        for level, below, capacity in self._buffers():
            tensors = [self._lifetime(n, level) for n, where in levels.items() if where == level]
            allocation = allocate(tensors, capacity, self.policy.spill, self.overlap == "room")
            for name in allocation.spilled:
                levels[name] = below
                self.spilled.append(name)
            self._lives |= {t.name: t.earlier if t.name in allocation.early else t for t in tensors}
            self._late.difference_update(allocation.early)
            self._late.update(t.name for t in tensors if t.name not in allocation.early)
        return levels

    def _buffers(self) -> list[tuple[str, str, int]]:
        """Level, the one below, and the bytes that results may take: of one core, or of the cluster."""
        one, all_ = self.machine.room(LOCAL) // self.machine.cores, self.machine.room(SHARED)
        return [(LOCAL, SHARED, one), (SHARED, MEMORY, all_)]

    def _lifetime(self, name: str, level: str) -> Lifetime:
        size = self.kernels.nbytes(name)
        size = ceil(size / self._cores(name)) if level == LOCAL else size
        life = Lifetime(name, size, self.first[name], self.last[name])
        return life.earlier if self.overlap == "tiles" else life  # a layer may begin while the one before it runs

    def _cores(self, name: str) -> int:
        placement = self.graph.placements.get(name)
        return min(placement.cores, self.machine.cores) if placement and placement.binding else self.machine.cores

    def _promote(self, levels: Mapping[str, str]) -> dict[str, int]:
        """Given arrays that stay in the shared buffer between their uses, and their bytes.

        Those that are read more often than they are long, while there is room beside the results: those first of which
        a byte of the buffer saves most traffic for the time that it is taken.
        """
        if self.policy.keep == MEMORY:
            return {}
        uses: Counter[str] = Counter()
        for layer in self.layers:
            uses.update({n: size for n, size in layer.reads.items() if n not in levels})
        sizes = {n: self.kernels.nbytes(n) for n in uses}
        saved = {n: (count - sizes[n]) / sizes[n] / self._span(n) for n, count in uses.items() if count > sizes[n]}
        room, promoted = self._room(levels), {}
        for name in sorted(saved, key=lambda n: -saved[n]):
            while_ = slice(self.first[name], self.last[name] + 1)
            if sizes[name] <= room[while_].min():
                room[while_] -= sizes[name]
                promoted[name] = sizes[name]
        return promoted

    def _span(self, name: str) -> int:
        return self.last[name] - self.first[name] + 1

    def _room(self, levels: Mapping[str, str]) -> np.ndarray:
        """Bytes of the shared buffer that results leave while each layer runs."""
        room = np.full(len(self.layers), self.machine.room(SHARED), np.int64)
        for name in (n for n, level in levels.items() if level == SHARED):
            life = self._lives[name]
            room[life.first : life.last + 1] -= life.size
        return room

    def _occupancy(self, levels: Mapping[str, str], promoted: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        change = [[0, 0] for _ in range(len(self.layers) + 1)]
        places = {**levels, **dict.fromkeys(promoted, SHARED)}
        for name, level in places.items():
            if level != MEMORY:
                size, k = self.kernels.nbytes(name), LEVELS.index(level)
                change[self.first[name]][k] += size
                change[self.last[name] + 1][k] -= size
        alive, steps = [0, 0], []
        for local, shared in change[:-1]:
            alive = [alive[0] + local, alive[1] + shared]
            steps.append((alive[0], alive[1]))
        return tuple(steps)

    # ---------------------------------------------------------------- what moves

    def _task(self, k: int, levels: Mapping[str, str], promoted: Mapping[str, int], traffic: Counter[str]) -> Task:
        layer, loads = self.layers[k], []
        cores = self._layer_cores(layer)
        for name, size in layer.reads.items():
            writer = name if name in levels else None
            level = levels.get(name, SHARED if name in promoted else MEMORY)
            traffic[level] += size
            fetched = size if level == MEMORY else 0
            if name in promoted and self.first[name] == k:
                fetched = promoted[name]
                traffic[MEMORY] += fetched
                traffic[SHARED] += fetched
            crossing = self.kernels.crossing(layer, name) if level == LOCAL else 0
            traffic[EXCHANGE] += crossing
            passed = size if level == SHARED or writer is None else crossing
            loads.append(Fetch(writer, fetched, passed, name in layer.aligned))
        stores = dict.fromkeys((SHARED, MEMORY), 0)
        for name, size in layer.writes.items():
            traffic[levels[name]] += size
            if levels[name] != LOCAL:
                stores[levels[name]] += size
        near = sum((*layer.reads.values(), *layer.writes.values()))
        work = {kind: self.machine.seconds(kind, count, cores) for kind, count in layer.work.items()}
        floor = near / (self.machine.local.bandwidth * cores)
        return Task(
            layer.kernel,
            tuple(layer.writes),
            tuple(loads),
            stores[SHARED],
            stores[MEMORY],
            work,
            floor,
            self._tiles(near),
            self._begins_early(layer, levels),
        )

    def _begins_early(self, layer: Layer, levels: Mapping[str, str]) -> bool:
        """May it begin while the task before it runs?"""
        return self.overlap == "tiles" or not any(n in self._late for n in layer.writes if levels[n] != MEMORY)

    def _layer_cores(self, layer: Layer) -> int:
        binding = self.kernels.binding(layer)
        return max(1, min(Placement(MEMORY, binding).cores, self.machine.cores)) if binding else self.machine.cores

    def _tiles(self, nbytes: int) -> int:
        """Of a layer: as large as half of the local buffers holds, for the other half is being filled or emptied."""
        return min(_MOST, max(_FEWEST, ceil(nbytes / (self.machine.local_size / 2))))
