"""The problem of what to store, read from a joint graph of a forward pass and its gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from daceopt.autodiff.forwarding import Boundary, is_cheap, why_fixed
from daceopt.autodiff.late_order import late_order
from daceopt.autodiff.storage import Pins, Storage
from daceopt.autodiff.storage_choice import StorageChoice, choose
from daceopt.autodiff.storage_problem import Computation, ForwardValue, GradientNode, StorageOutcome, StorageProblem
from daceopt.codegen.memory_plan import aligned_bytes
from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.movement import data_movement
from daceopt.cost.work import known_flops
from daceopt.ir.control.region import Region, iterations
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode


def within_budget(
    graph: Graph,
    boundary: Boundary,
    storage: Storage,
    pinned: Pins,
    fixed_arrays: Sequence[str],
    default: Sequence[str],
) -> tuple[list[str], str]:
    """The arrays to store for ``storage.budget``, in the order in which they are made, and what that comes to;
    ``default``: what would be stored without it."""
    problem, names = problem_of(graph, boundary, storage, pinned, fixed_arrays, dict(storage.sizes))
    index = {name: k for k, name in enumerate(names)}
    start = frozenset(index[n] for n in default if n in index)
    choice = choose(problem, start, storage.by, storage.seconds)
    stored = {names[v] for v in _settle(problem, choice.outcome)}
    return [n for n in graph.arrays() if n in stored], _storage_text(problem, choice)


def _settle(problem: StorageProblem, outcome: StorageOutcome) -> set[int]:
    """The values to store, where a node writes several: of one that runs again none, unless one has to be the forward's
    own; then all, and it does not run again."""
    stored = set(outcome.stored)
    for c in outcome.again:
        writes = set(problem.forward[c].writes)
        stored = stored | writes if stored & writes & problem.fixed else stored - writes
    return stored


def _storage_text(problem: StorageProblem, choice: StorageChoice) -> str:
    outcome = choice.outcome
    proved = f", at most {choice.gap:.0%} from the best" if choice.bound else ""
    return (
        f"stores {len(outcome.stored)} arrays, computes {len(outcome.again)} nodes again "
        f"({1e3 * outcome.seconds:.3f} ms as modelled, by {choice.by}{proved}); asked for "
        f"{problem.budget} bytes, planned {outcome.peak}"
    )


def problem_of(
    graph: Graph,
    boundary: Boundary,
    storage: Storage,
    pinned: Pins,
    fixed_arrays: Iterable[str],
    sizes: Mapping[str, int],
) -> tuple[StorageProblem, list[str]]:
    """The problem, and the array that each of its values is.

    ``graph`` is the joint graph, pruned to what the gradients need; ``kept``: arrays that outlive the forward in any
    case, as its outputs. ``sizes`` has values of size symbols.
    """
    reading = _Reading(graph, boundary, storage, set(fixed_arrays), sizes)
    fixed = frozenset(k for name, k in reading.index.items() if reading.is_fixed(name) or name in pinned.store)
    local = frozenset(reading.index[n] for n in boundary.local if n in reading.index)
    again = frozenset(reading.index[n] for n in pinned.recompute if n in reading.index) | local
    values = tuple(reading.value(name) for name in reading.index)
    forward, backward = tuple(reading.computations()), tuple(reading.gradients())
    budget = storage.budget or 0
    shared = storage.joined or not graph.symbols  # of sizes that are known, others are in the saved block
    return StorageProblem(values, forward, backward, budget, fixed - again, again, shared), list(reading.index)


@dataclass
class _Reading:
    graph: Graph
    boundary: Boundary
    storage: Storage
    kept: set[str]
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        self._times = KernelTimes(self.graph, self.sizes)
        self._moved = data_movement(self.graph).nodes

    @cached_property
    def forward(self) -> list[Node]:
        return [n for n in self.graph.nodes() if n in self.boundary.nodes]

    @cached_property
    def backward(self) -> list[Node]:
        return [n for n in late_order(self.graph, self.boundary.nodes) if n not in self.boundary.nodes]

    @cached_property
    def index(self) -> dict[str, int]:
        """Buffer of the forward -> its number."""
        arrays: dict[str, None] = {}
        for node in self.forward:
            arrays |= dict.fromkeys([*self._reads(node), *self._writes(node)])
        for node in self.backward:
            arrays |= dict.fromkeys(n for n in self._reads(node) if n in self.boundary.arrays)
        return {name: k for k, name in enumerate(arrays)}

    @cached_property
    def _position(self) -> dict[Node, int]:
        return {node: k for k, node in enumerate(self.forward)}

    def _reads(self, node: Node) -> list[str]:
        return self._roots(self.graph.inputs_of(node))

    def _writes(self, node: Node) -> list[str]:
        return self._roots(self.graph.outputs_of(node))

    def _roots(self, names: Iterable[str | None]) -> list[str]:
        return [n for n in dict.fromkeys(self.graph.root(n)[0] for n in names if n is not None) if n != SEED]

    # ---------------------------------------------------------------- values

    def value(self, name: str) -> ForwardValue:
        makers = tuple(sorted(self._position[n] for n in self.graph.producers(name)))
        size = self._bytes(name)
        if not makers or name in self.kept:
            return ForwardValue(name, 0, 0, 0 if self._fuses(name) else size, makers)
        fuses = self._fuses(name)
        writing = self._times.machine.seconds((1 + fuses) * size, 0, threads=self._times.machine.cores)
        in_forward = 0 if name in self.boundary.local or self._fuses(name, self.boundary.nodes) else size
        return ForwardValue(name, size, in_forward, 0 if fuses else size, makers, writing)

    def is_fixed(self, name: str) -> bool:
        """Is it stored wherever it is read?"""
        return name in self.kept or (
            bool(self.graph.producers(name)) and why_fixed(self.graph, self.boundary, name) is not None
        )

    def _fuses(self, name: str, among: Collection[Node] | None = None) -> bool:
        """Does its writer become a part of each node (``among`` some) that reads it?"""
        makers = self.graph.producers(name)
        readers = [n for n in self.graph.all_consumers(name) if among is None or n in among]
        if len(makers) != 1 or not is_cheap(self.graph, makers[0]) or not readers:
            return False
        alone = len(readers) == 1 and isinstance(readers[0], KernelNode)
        return alone or (name in self.index and all(is_cheap(self.graph, n) for n in readers))

    def _bytes(self, name: str) -> int:
        return int(self._times.number(aligned_bytes(self.graph, name)))

    # ---------------------------------------------------------------- nodes

    def computations(self) -> Iterable[Computation]:
        for node in self.forward:
            reads = tuple(self.index[n] for n in self._reads(node))
            writes = tuple(self.index[n] for n in self._writes(node))
            yield Computation(reads, writes, self._seconds(node), is_cheap(self.graph, node))

    def gradients(self) -> Iterable[GradientNode]:
        live, before = self._gradient_bytes()
        for k, node in enumerate(self.backward):
            reads = tuple(self.index[n] for n in self._reads(node) if n in self.index)
            yield GradientNode(reads, live[k], before[k], is_cheap(self.graph, node))

    def _gradient_bytes(self) -> tuple[list[int], list[int]]:
        """Bytes of gradients alive while each node runs, and just before it."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for k, node in enumerate(self.backward):
            for name in self._writes(node):
                first.setdefault(name, k)
                last.setdefault(name, k)
            for name in (n for n in self._reads(node) if n in first):
                last[name] = max(last[name], k - is_cheap(self.graph, node))
        live, before = ([0] * (len(self.backward) + 2) for _ in range(2))
        for name, start in first.items():
            end, size = self._end(name, start, last[name]), self._held_bytes(name)
            for changes, begin in ((live, start), (before, start + 1)):
                changes[begin] += size
                changes[max(end, begin - 1) + 1] -= size
        return list(accumulate(live)), list(accumulate(before))

    def _end(self, name: str, start: int, last: int) -> int:
        """An update reads the gradient of a parameter as soon as it is computed."""
        return start if name in self.graph.outputs and self.storage.joined else last

    def _held_bytes(self, name: str) -> int:
        """Bytes of the arena: results are the caller's."""
        is_result = name in self.graph.outputs and not self.storage.joined
        return 0 if is_result or self._fuses(name) else self._bytes(name)

    def _seconds(self, node: Node) -> float:
        """By all cores, as if it were scheduled."""
        machine = self._times.machine
        if isinstance(node, KernelNode):
            return replace(self._times.work(node), threads=machine.cores).seconds(machine)
        moved, rounds = self._times.number(sum(self._moved[node])), 1.0
        if isinstance(node, Region):
            rounds = max(self._times.number(iterations(node)), 1.0)
        return rounds * machine.call + machine.product_seconds(moved, self._times.number(known_flops(self.graph, node)))
