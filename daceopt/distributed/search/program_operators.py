"""The operators of a program before fusion: as a training graph, and which of them can be one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from daceopt.cost.rates import Rates, rates
from daceopt.distributed.search.operator_costs import FUNCTIONS, OperatorCost, OperatorReach, operator_costs
from daceopt.distributed.search.training_graph import (
    GradientTensor,
    GroupModel,
    KernelGroup,
    StepOperator,
    TrainingGraph,
    Tree,
    joints,
)
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.control.program import Program
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion import expand_locals, merge
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.order import sources_of
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.collective import AllReduceStart, AllReduceWait
from daceopt.ir.scalar import types
from daceopt.transformations.distributed.operator_grouping import DIRECTIONS, OperatorGrouping, producer, stable_name
from daceopt.transformations.distributed.tensor_fusion import wait_of

MAX_STATEMENTS = 48
COLLECTIVES = (AllReduceStart, AllReduceWait)
_BETWEEN = "between forward and backward"

_Key: TypeAlias = tuple[Tree, frozenset[int]]

Estimate = Callable[[OperatorReach, KernelGroup], float]
"""Seconds of the kernel of a group."""


@dataclass
class _Place:
    """A node, in the graph in which it is."""

    graph: Graph
    node: Any


class ProgramOperators:
    """The nodes of both directions of a program in the order in which they run, and between them one that takes no
    time: no gradient is computed before the loss.

    Arrays are called after their direction, for a backward graph has arrays of the forward under their own names.
    """

    def __init__(self, program: Program, machine: Rates | None = None, calls: Mapping[Node, float] | None = None):
        """``calls``: seconds of library calls by node, where they were measured (``step_times``). Raises DaceoptError
        where the program reduces no gradients."""
        self.program, self.machine, self.calls = program, machine or rates(), calls or {}
        self.places: list[_Place | None] = []
        costs: list[OperatorCost] = []
        for direction, graph in zip(DIRECTIONS, program.directions()):
            if direction == "backward":
                self.places.append(None)
                costs.append(OperatorCost("opaque", 0.0, 0.0, {}, {}, 1.0, (0.0,) * len(FUNCTIONS)))
            for node, cost in _updates_last(graph, operator_costs(graph, self.machine, measured=self.calls)):
                if is_operator(graph, node):
                    self.places.append(_Place(graph, node))
                    costs.append(_prefix(cost, f"{direction}/"))
        self.reach = OperatorReach(costs)
        self._kernels: dict[_Key, Kernel | None] = {}  # what is exported is written: copies make another kernel
        self._reasons: dict[tuple[_Key, _Key, bool], str | None] = {}
        computations = tuple(self._computations())
        self.graph = TrainingGraph(computations, tuple(self._gradients(computations)))

    # ---------------------------------------------------------------- the training graph

    def _computations(self) -> list[StepOperator]:
        operators = self.reach.operators
        step_operators: list[StepOperator] = []
        middle = next((k for k, place in enumerate(self.places) if place is None), len(self.places))
        for k, place in enumerate(self.places):
            if place is None:
                read = {p for c in step_operators for p in c.before}
                step_operators.append(StepOperator(_BETWEEN, 0.0, tuple(sorted(set(range(k)) - read)), fusible=False))
                continue
            before = {self.reach.writer[a] for a in operators[k].reads if a in self.reach.writer} - {k}
            before |= {middle} if k > middle else set()
            seconds = 0.0 if isinstance(place.node, COLLECTIVES) else operators[k].seconds
            name = stable_name(DIRECTIONS[k > middle], place.graph, place.node)
            is_kernel = isinstance(place.node, KernelNode) and producer(place.graph, name) is place.node
            fusible = is_kernel and self._kernel(KernelGroup.single(k)) is not None
            step_operators.append(StepOperator(name, seconds, tuple(sorted(before)), fusible))
        return step_operators

    def _gradients(self, computations: Sequence[StepOperator]) -> list[GradientTensor]:
        tensors = []
        position = {id(place.node): k for k, place in enumerate(self.places) if place is not None}
        middle = next((k for k, place in enumerate(self.places) if place is None), 0)
        for graph, node in ((g, n) for g in self.program.directions() for n in g.nodes()):
            if not isinstance(node, AllReduceStart) or not node.parameters:
                continue
            (name,), array = node.parameters, graph.reads(node)["X"]
            size, width = graph.size(array), graph.dtype(array).bytes
            if not isinstance(size, int):
                raise DaceoptError(f"the gradient of {name} has an open size: {size}")
            producer = max((position[id(n)] for n in graph.producers(array)), default=middle)
            average = position.get(id(wait_of(graph, node)))
            behind = _dependents(computations, average) if average is not None else ()
            tensors.append(GradientTensor(name, size * width, producer, types.name_of(graph.dtype(array)), behind))
        if not tensors:
            raise DaceoptError("the program reduces no gradients: no parameter has one")
        return tensors

    # ---------------------------------------------------------------- which can be one kernel

    def estimate(self, estimate: Estimate) -> TrainingGraph:
        """The graph, its kernels with the times that ``estimate`` gives."""
        operators = tuple(
            replace(c, seconds=estimate(self.reach, KernelGroup.single(k))) if c.fusible else c
            for k, c in enumerate(self.graph.computations)
        )
        return TrainingGraph(operators, self.graph.gradients)

    def model(self, estimate: Estimate) -> GroupModel:
        """What a search asks; ``estimate`` gives the seconds of a kernel of several operators."""
        estimates: dict[tuple[frozenset[int], frozenset[int]], float] = {}

        def seconds(group: KernelGroup) -> float:
            key = group.members, group.exported
            if key not in estimates:
                estimates[key] = estimate(self.reach, group)
            return estimates[key]

        return GroupModel(self.why_not, seconds, self.refusals)

    def why_not(self, first: KernelGroup, second: KernelGroup, copied: bool) -> str | None:
        """What keeps two groups from being one kernel, where no cycle does; None where nothing does."""
        key = _key(first), _key(second), copied
        if key not in self._reasons:
            self._reasons[key] = self._merge(first, second, copied)
        return self._reasons[key]

    def refusals(self, groups: Sequence[KernelGroup]) -> set[Tree]:
        """The merges that are refused where all these groups are enacted: it is tried, on a copy of the program."""
        named = {self.graph.name(g): g for g in groups}
        _, errors = OperatorGrouping(tuple(named)).attempt(self.program.copy())
        return {joints(named[e.group].tree)[e.merge] for e in errors}

    def _merge(self, first: KernelGroup, second: KernelGroup, copied: bool) -> str | None:
        places = [self.places[next(iter(group.members))] for group in (first, second)]
        one, other = self._kernel(first), self._kernel(second)
        if one is None or other is None or places[0] is None or places[1] is None:
            return "one of both is no kernel"
        graph = places[0].graph
        if graph is not places[1].graph:
            return "one of both runs forward, the other backward"
        if copied and len(first.members) > 1:
            return "a kernel of several operators is not computed twice"
        if len(self._sides(first) | self._sides(second)) > 1:
            return "one of both is computed late, for the sake of memory"
        if len(one.stages) + len(other.stages) > MAX_STATEMENTS:
            return f"one kernel would have more than {MAX_STATEMENTS} statements"
        joined = second.with_first(first, copied)
        prefix = DIRECTIONS[graph is self.program.backward] + "/"
        kernel = merge(graph, one, other, lambda a: self.reach.is_needed(prefix + a, joined.members, joined.exported))
        if isinstance(kernel, str):
            return kernel
        reason = fusion_profit.why_slower(graph, one, other, kernel)
        if reason is None:
            self._kernels[_key(joined)] = kernel
        return reason

    def _sides(self, group: KernelGroup) -> set[bool]:
        """Are its operators computed late, or early (``Graph.apart``)? Empty where that does not matter."""
        places = [place for k in group.members if (place := self.places[k]) is not None]
        written = [(p.graph.apart, a) for p in places if p.graph.apart for a in p.graph.outputs_of(p.node)]
        return {apart[a] for apart, a in written if a in apart}

    def _kernel(self, group: KernelGroup) -> Kernel | None:
        key = _key(group)
        if key not in self._kernels:
            assert isinstance(group.tree, int), "a kernel of several operators is known since it was merged"
            self._kernels[key] = self._extract(group.tree)
        return self._kernels[key]

    def _extract(self, position: int) -> Kernel | None:
        place = self.places[position]
        if place is None or not isinstance(place.node, KernelNode):
            return None
        try:
            return expand_locals(place.node.kernel)
        except Unsupported:
            return None


def _updates_last(graph: Graph, costs: Iterable[OperatorCost]) -> list[tuple[Node, OperatorCost]]:
    """Nodes in their order, but what needs the result of a reduction behind all that does not: where it runs."""
    late: set[Any] = set()
    pairs = list(zip(graph.nodes(), costs, strict=True))
    for node, _ in pairs:
        if isinstance(node, AllReduceWait) or any(s in late for _, s in sources_of(graph, node)):
            late.add(node)
    return sorted(pairs, key=lambda pair: pair[0] in late)


def _dependents(computations: Sequence[StepOperator], position: int) -> tuple[int, ...]:
    """What needs the result of the one at ``position``."""
    dependents = {position}
    for k, computation in enumerate(computations[position + 1 :], position + 1):
        if not dependents.isdisjoint(computation.before):
            dependents.add(k)
    return tuple(sorted(dependents - {position}))


def is_operator(graph: Graph, node: Node) -> bool:
    """Is it a kernel, a call, or a wait for what the same graph computes with? Other collectives are gradients'."""
    if not isinstance(node, COLLECTIVES):
        return True
    return isinstance(node, AllReduceWait) and bool(graph.all_consumers(graph.writes(node)["Y"]))


def _key(group: KernelGroup) -> _Key:
    return group.tree, group.exported


def by_roofline(machine: Rates) -> Estimate:
    """Bytes and operations of a kernel, and nothing else, decide about its time."""
    return lambda reach, group: reach.cost(group.members, group.exported).seconds(machine)


def _prefix(cost: OperatorCost, prefix: str) -> OperatorCost:
    def rename(arrays: Mapping[str, float]) -> dict[str, float]:
        return {prefix + name: nbytes for name, nbytes in arrays.items()}

    outputs = frozenset(prefix + name for name in cost.kept)
    return replace(cost, reads=rename(cost.reads), writes=rename(cost.writes), kept=outputs)
