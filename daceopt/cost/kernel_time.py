"""How long kernels take, alone and side by side, as the model of the machine has it (``cost/rates.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING

import sympy

from daceopt.cost.loop_work import loop_work
from daceopt.cost.movement import data_movement
from daceopt.cost.rates import Rates, rates
from daceopt.cost.reuse_distance import ReuseDistances
from daceopt.cost.work import kernel_flops
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.dims import Dim, with_hints
from daceopt.ir.schedule import schedule

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

BLOCKS = 4  # of a branch's share, for each core: an uneven end costs a quarter of a core's time at most
_LEAST = 5e-7  # seconds of a block: less than this, and its start counts


@dataclass(frozen=True)
class Work:
    """What a kernel does: bytes moved, operations on elements of 4 bytes; ``threads`` that its schedule starts."""

    bytes: float
    operations: float
    threads: int = 1

    def seconds(self, machine: Rates) -> float:
        """By itself, as it is scheduled."""
        start = machine.region if self.threads > 1 else 0.0
        return machine.call + start + machine.seconds(self.bytes, self.operations, threads=self.threads)


@dataclass(frozen=True)
class Deal:
    """Branches dealt to threads: their order (indices), the blocks of each in that order, and the seconds of the thread
    that ends last."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    seconds: float


class KernelTimes:
    """The kernels of one graph; ``sizes`` has values of size symbols, others count as ``HINT``."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None = None, machine: Rates | None = None):
        self._graph, self._sizes = graph, sizes or {}
        self._machine = machine
        self._known: dict[Node, Work] = {}

    @cached_property
    def machine(self) -> Rates:
        return self._machine or rates()

    @cached_property
    def _moved(self) -> Mapping[Node, tuple[Dim, Dim]]:
        return data_movement(self._graph).nodes

    def work(self, node: Node) -> Work:
        """Of the kernel at ``node``, in the schedule that it has now."""
        if node not in self._known:
            kernel = node.kernel
            names = [n for n in self._graph.outputs_of(node) if n is not None]
            width = max(1.0, max((self._graph.dtype(n).bytes for n in names), default=4) / 4)
            moved = self.number(sum(self._moved[node]))
            self._known[node] = Work(moved, width * self.number(kernel_flops(kernel)), self._threads(kernel))
        return self._known[node]

    def seconds(self, node: Node) -> float:
        """Of the kernel at ``node`` where it runs, after the nodes before it: by the loops of its schedule, or by bytes
        and operations as long as it has none."""
        work = self.work(node)
        if node.kernel.schedule is None:
            return work.seconds(self.machine)
        start = self.machine.cold_call + (self.machine.region if work.threads > 1 else 0.0)
        return start + self.machine.running(self.loops(node), self._distances.parts[node], work.threads)

    def loops(self, node: Node) -> Mapping[str, float]:
        """What the loops of the kernel at ``node`` do, by the units of ``loop_work.py``."""
        return loop_work(self._graph, node.kernel, self.number)

    @cached_property
    def _distances(self) -> ReuseDistances:
        return ReuseDistances.of(self._graph, self.number, {n: self.number(sum(b)) for n, b in self._moved.items()})

    def _threads(self, kernel: Kernel) -> int:
        """The threads that start: a band of parallel loops has no more than iterations."""
        band: list[schedule.Loop] = []
        for loop in schedule.loops(schedule.schedule_of(kernel)):
            if loop.kind.startswith("parallel"):
                band.append(loop)
        if not band or (band[0].when is not None and not self._holds(band[0].when)):
            return 1
        count = 1.0
        for loop in band:
            count *= self.number(loop.extent)
        count = count if band[-1].kind == "parallel" else count / 16  # elements in a vector
        return max(1, min(self.machine.cores, int(count)))

    def _holds(self, condition: sympy.Basic) -> bool:
        sides = self.number(condition.lhs), self.number(condition.rhs)
        return bool(sides[0] >= sides[1] if ">" in condition.rel_op else sides[0] <= sides[1])

    def number(self, expr: Dim) -> float:
        """An expression over sizes as a number."""
        if isinstance(expr, sympy.Integer):
            return float(int(expr))
        return float(expr if isinstance(expr, int) else with_hints(sympy.sympify(expr), self._sizes))

    # ---------------------------------------------------------------- side by side

    def side_by_side(self, works: Sequence[Work], most: Sequence[float], blocks: int = BLOCKS) -> Deal:
        """All branches in one parallel loop over their blocks; ``most`` blocks of each at most.

        Blocks take about equally long, ``blocks`` or a small multiple for each core in all, and threads get
        neighbouring blocks, as many each as the others: of some numbers and orders, what ends first.
        """
        machine = self.machine
        total = sum(w.bytes for w in works)
        alone = [machine.seconds(w.bytes, w.operations, beside=total - w.bytes) for w in works]
        falling = sorted(range(len(works)), key=lambda k: -alone[k])
        orders = dict.fromkeys(map(tuple, (falling, falling[::-1], _alternating(falling))))
        deals = (self._deal(alone, most, order, blocks * k) for k in (1, 2, 4) for order in orders)
        return min(deals, key=lambda deal: deal.seconds)

    def _deal(self, alone: Sequence[float], most: Sequence[float], order: tuple[int, ...], blocks: int) -> Deal:
        machine = self.machine
        target = max(sum(alone) / (blocks * machine.cores), _LEAST)
        counts = tuple(max(1, int(min(round(alone[k] / target), most[k]))) for k in order)
        each = [alone[k] / n for k, n in zip(order, counts) for _ in range(n)]
        share = -(-len(each) // machine.cores)
        longest = max(sum(each[k : k + share]) for k in range(0, len(each), share))
        return Deal(order, counts, machine.call + machine.region + longest)

    def gain(self, works: Sequence[Work], deal: Deal) -> float:
        """Cost model (3): what the kernels take one after the other, less what they take side by side.

        The paper's maximum over the branches is the thread that ends last: where branches are cut into blocks, a branch
        is no longer bound to one unit. What a region costs to start is part of both.
        """
        return sum(w.seconds(self.machine) for w in works) - deal.seconds


def _alternating(falling: Sequence[int]) -> list[int]:
    """The largest, the smallest, the second largest, and so on."""
    half = -(-len(falling) // 2)
    pairs = zip_longest(falling[:half], reversed(falling[half:]))
    return [k for pair in pairs for k in pair if k is not None]
