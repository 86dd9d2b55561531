"""When every tile of every layer is loaded, computed and stored: units work at the same time, each in program order."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daceopt.cost.machines.hierarchy import MachineModel

DMA, WAY = "DMA", "exchange"
"""Between memory and a cluster; between the shared buffer and the local ones."""

OVERLAPS = ("none", "weights", "room", "tiles")
"""What runs beside a task: its own tiles only; loads of what is given for later ones; tiles of the next one, too, where
there is room for its results; tiles of the next ones, for which room is made."""


@dataclass(frozen=True)
class Fetch:
    """What a task reads of one array: bytes from memory, and bytes through the shared buffer to the local ones.

    ``writer``: the array, where an earlier task writes it; None where it is given, and may be fetched at any time.
    ``aligned``: a tile of the task needs the same tile of the array only, and its neighbour.
    """

    writer: str | None
    fetched: int
    passed: int
    aligned: bool = False


@dataclass(frozen=True)
class Task:
    """A layer of ``kernel``: what it reads, what it ``writes``, bytes that it stores, the seconds that each kind of
    work takes, the least seconds that local buffers need, in how many tiles it runs, and whether there is room for its
    results while the task before it runs."""

    kernel: int
    writes: tuple[str, ...]
    loads: tuple[Fetch, ...]
    to_shared: int
    to_memory: int
    work: Mapping[str, float]
    floor: float
    tiles: int
    beside: bool = True


@dataclass(frozen=True)
class Event:
    """A unit works for a tile of the task ``task`` from ``start`` to ``end`` (seconds)."""

    unit: str
    task: int
    start: float
    end: float


@dataclass
class Schedule:
    """The events, and when the last of them ends."""

    events: list[Event] = field(default_factory=list)
    seconds: float = 0.0


class Pipeline:
    """``overlap``, of ``OVERLAPS``: with ``room`` and ``tiles``, tasks overlap as far as data, units and room allow;
    otherwise each waits for all of the one before it."""

    def __init__(self, machine: MachineModel, overlap: str):
        self._machine, self._overlap = machine, overlap
        self._memory = machine.memory.bandwidth
        self._free: dict[str, float] = {}
        self._ways = {DMA: _Way(), WAY: _Way()}
        self._outstanding: deque[tuple[float, float]] = deque()  # bytes fetched ahead, and when they are used
        self._computed: deque[float] = deque([0.0, 0.0], 2)  # ends of the last two tiles: local tile buffers are two
        self._ends: dict[str, list[float]] = {}  # array -> when each of its tiles is where it lives
        self._begun = 0.0  # of the kernel that runs
        self._schedule = Schedule()

    def run(self, tasks: Sequence[Task]) -> Schedule:
        """In their order."""
        kernel = -1
        for k, task in enumerate(tasks):
            end = self._schedule.seconds
            if task.kernel != kernel:
                kernel = task.kernel
                # the next launch is on its way while a kernel runs, unless kernels wait for one another
                self._begun = (end if self._overlap == "none" else self._begun) + self._machine.launch
            fetch = end if self._overlap == "none" else 0.0
            start = 0.0 if self._overlap in OVERLAPS[2:] and task.beside else end
            self._task(k, task, max(start, self._begun), max(fetch, self._begun))
        return self._schedule

    def _task(self, k: int, task: Task, earliest: float, fetch: float) -> None:
        """``earliest`` that it may begin; ``fetch``: that what it is given may be loaded."""
        ends = []
        fetched = sum(load.fetched for load in task.loads if load.writer is None) / task.tiles
        for tile in range(task.tiles):
            room = self._room(fetched, fetch)
            begins = (self._load(k, task, x, tile, room if x.writer is None else earliest) for x in task.loads)
            end = self._compute(k, task, max([earliest, self._computed[0], *begins]))
            self._computed.append(end)
            if fetched:
                self._outstanding.append((fetched, end))
            ends.append(self._store(k, task, end))
        for name in task.writes:
            self._ends[name] = ends

    # ---------------------------------------------------------------- the steps of a tile

    def _load(self, k: int, task: Task, load: Fetch, tile: int, earliest: float) -> float:
        """When a tile of an array is in the local buffers."""
        ready = earliest if load.writer is None else max(earliest, self._end_of_write(load, task.tiles, tile))
        if load.fetched:
            ready = self._move(DMA, k, ready, load.fetched / task.tiles / self._memory)
        if load.passed:
            start = max(ready, self._computed[0])
            ready = self._move(WAY, k, start, load.passed / task.tiles / self._machine.shared.bandwidth)
        return ready

    def _end_of_write(self, load: Fetch, tiles: int, tile: int) -> float:
        ends = self._ends.get(load.writer or "", [0.0])
        if not load.aligned:
            return max(ends)
        last = -(-(tile + 1) * len(ends) // tiles)  # and its neighbour, for halos
        return max(ends[: min(len(ends), last + 1)])

    def _room(self, share: float, start: float) -> float:
        """When there is room in the shared buffer for what is fetched ahead."""
        reserve = self._machine.shared.reserved
        while self._outstanding and sum(size for size, _ in self._outstanding) + share > reserve:
            start = max(start, self._outstanding.popleft()[1])
        return start

    def _compute(self, k: int, task: Task, ready: float) -> float:
        """Kinds of work follow one another, each on its unit: the anchor first."""
        end = ready
        for kind, seconds in task.work.items():
            unit = self._machine.unit(kind).name
            start = max(end, self._free.get(unit, 0.0))
            end = self._free[unit] = start + seconds / task.tiles
            self._record(unit, k, start, end)
        return max(end, ready + task.floor / task.tiles)

    def _store(self, k: int, task: Task, computed_at: float) -> float:
        if task.to_shared:
            computed_at = self._move(WAY, k, computed_at, task.to_shared / task.tiles / self._machine.shared.bandwidth)
        if task.to_memory:
            computed_at = self._move(DMA, k, computed_at, task.to_memory / task.tiles / self._memory)
        return computed_at

    def _move(self, unit: str, k: int, start: float, seconds: float) -> float:
        begin = self._ways[unit].take(start, seconds)
        self._record(unit, k, begin, begin + seconds)
        return begin + seconds

    def _record(self, unit: str, k: int, start: float, end: float) -> None:
        if end > start:
            self._schedule.events.append(Event(unit, k, start, end))
        self._schedule.seconds = max(self._schedule.seconds, end)


class _Way:
    """A resource that serves requests in the first gap that holds them."""

    def __init__(self) -> None:
        self._busy: list[tuple[float, float]] = []  # merged, by start

    def take(self, start: float, seconds: float) -> float:
        """The beginning of ``seconds`` in which it is free, not before ``start``; it is taken."""
        busy = self._busy
        k = max(0, bisect_right(busy, (start, float("inf"))) - 1)
        while k < len(busy):
            if start + seconds <= busy[k][0]:
                break
            start = max(start, busy[k][1])
            k += 1
        insort(busy, (start, start + seconds))
        self._merge(bisect_right(busy, (start, start + seconds)) - 1)
        return start

    def _merge(self, k: int) -> None:
        """Join the interval ``k`` with neighbours that it touches."""
        busy = self._busy
        if k + 1 < len(busy) and busy[k + 1][0] <= busy[k][1]:
            busy[k : k + 2] = [(busy[k][0], max(busy[k][1], busy[k + 1][1]))]
        if k > 0 and busy[k][0] <= busy[k - 1][1]:
            busy[k - 1 : k + 1] = [(busy[k - 1][0], max(busy[k - 1][1], busy[k][1]))]
