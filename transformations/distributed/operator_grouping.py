"""Fuse exactly the groups of operators that a strategy names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.errors import StrategyError, Unsupported
from daceopt.ir.control.program import Program
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan, emit
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import Outcome, Transformation

DIRECTIONS = ("forward", "backward")

Group = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, int], ...]]
"""Nodes, those of them of which there is one outside, too, and in which order they become one: each merge is of what
holds two of them by then, by their places among the nodes. What no merge says is merged in any order that works."""


class RefusedMerge(StrategyError):
    """``group`` cannot be one kernel, because of its merge number ``merge``."""

    def __init__(self, group: Group, merge: int, reason: str):
        super().__init__(f"{' + '.join(group[0])} cannot be one kernel: {reason}. Search the strategy again")
        self.group, self.merge = group, merge


def stable_name(direction: str, graph: Graph, node: Node) -> str:
    """How strategies call a node: ``forward/`` or ``backward/`` and the first array that it writes."""
    return f"{direction}/{next(n for n in graph.outputs_of(node) if n is not None)}"


def producer(graph: Graph, name: str) -> Node | None:
    """The node that strategies call so; None where there is none."""
    array = name.partition("/")[2]
    return graph.producer(array) if graph.has(array) else None


@dataclass(frozen=True)
class OperatorGrouping(Transformation):
    """Merge the kernels of each group into one, and nothing else.

    before:  a = f(x)    b = g(a)    c = h(a)                      groups=((("a", "b"), ("a",), ((0, 1),)),)
    after:   a = f(x)    b = { t = f(x); g(t) }    c = h(a)        where a is duplicated; without that, one of both

    DisCo (Yi et al., 2022, sections 2.2 and 3.2): non-duplicate and duplicate fusion as a search found them.
    ``groups``: names of nodes (:func:`stable_name`), those of them of which the group has a copy of its own, and its
    merges: another order of them may end where nothing can be merged any more. Raises StrategyError where a name is not
    in the program, or nodes cannot be one kernel: the strategy is for another graph.
    """

    level: ClassVar[str] = "local"
    groups: tuple[Group, ...] = ()

    def run_program(self, program: Program) -> Outcome:
        """Each group in the direction that its names say."""
        kernels, refused = self.attempt(program)
        for error in refused:
            raise error
        return Outcome(kernels, [])

    def attempt(self, program: Program) -> tuple[list[str], list[RefusedMerge]]:
        """The kernels that were made, and for each group that is none, or several, why."""
        kernels: list[str] = []
        refused: list[RefusedMerge] = []
        rest = set(self.groups)
        for direction, graph in zip(DIRECTIONS, program.directions()):
            own = [g for g in self.groups if g[0] and g[0][0].startswith(f"{direction}/")]
            rest.difference_update(own)
            kernels += self._group(graph, direction, own, refused)
        if rest:
            raise StrategyError(f"the group of {sorted(rest)[0][0][:1]} is in no direction of the program")
        program.align()
        return kernels, refused

    def _group(self, graph: Graph, direction: str, groups: Sequence[Group], refused: list[RefusedMerge]) -> list[str]:
        if not groups:
            return []
        nodes_of = [[_node(graph, direction, name) for name in names] for names, _, _ in groups]
        graph.order = graph.nodes()  # what is fused stays where it was: that is what was simulated
        position = {node: k for k, node in enumerate(graph.nodes())}
        nodes = {a: graph.producer(a) for own in nodes_of for a in own}
        kernels = {a: (position[n], n.kernel) for a, n in nodes.items() if isinstance(n, KernelNode)}
        members: dict[Group, list[str]] = {}  # the arrays that nodes of a group write
        for group, own in zip(groups, nodes_of):
            copied = {a for a, name in zip(own, group[0]) if name in group[1]}
            try:
                ordered = sorted(own, key=lambda a: kernels[a][0])
                written = dict(zip(ordered, _with_copies(graph, kernels, [(a, a in copied) for a in ordered])))
                members[group] = [written[a] for a in own]
            except Unsupported as error:
                refused.append(RefusedMerge(group, len(group[2]) - 1, str(error)))
        plan = FusionPlan(graph, keeps_order=False)
        for group, arrays in members.items():
            try:
                _unite(plan, [graph.producer(a) for a in arrays], group)
            except RefusedMerge as error:
                refused.append(error)
        return _emit(graph, plan)


def _emit(graph: Graph, plan: FusionPlan) -> list[str]:
    kernels = []
    for group in plan.fused_groups():
        assert group.kernel is not None
        kernels.append(" + ".join(str(getattr(m, "label", m)) for m in group.members))
        emit(graph, group.members, group.kernel)
    graph.prune()
    return kernels


def _node(graph: Graph, direction: str, name: str) -> str:
    """The array by which a node is named. Raises StrategyError."""
    prefix, _, array = name.partition("/")
    if prefix != direction or not isinstance(producer(graph, name), KernelNode):
        raise StrategyError(
            f"the strategy groups {name}, which is no kernel of the {direction} graph before fusion: it was found for "
            "another model, recipe or version. Search it again"
        )
    return array


def _with_copies(
    graph: Graph, kernels: Mapping[str, tuple[int, Kernel]], members: Sequence[tuple[str, bool]]
) -> Iterator[str]:
    """The arrays that the nodes of a group write once it has copies of its own of some, which its others read.

    ``members``: arrays in the order in which they are written, and whether that is copied; ``kernels`` write them.
    """
    twins: dict[str, str] = {}
    for array, is_copy in members:
        kernel = kernels[array][1]
        read = {a: _twin(graph, a, twins) for stage in kernel.stages for a in _names(stage.reads)}
        changed = {a: t for a, t in read.items() if a != t}
        if is_copy:
            written = [a for stage in kernel.stages for a in _names(stage.writes) if a not in kernel.locals]
            for name in dict.fromkeys(written):
                twins[name] = graph.add_array(name, graph.shape(name), graph.dtype(name), graph.strides(name))
            graph.add_kernel(kernel.rename_locals_apart(graph).over({**changed, **{n: twins[n] for n in written}}))
        elif changed:
            graph.take_out([graph.producer(array)])
            graph.add_kernel(kernel.over(changed))
        yield twins[array] if is_copy else array


def _names(accesses: Mapping[str, Any]) -> list[str]:
    return [access.array for access in accesses.values()]


def _twin(graph: Graph, name: str, twins: dict[str, str]) -> str:
    """What stands for ``name`` where what it shows was copied: a view of the copy, for a view."""
    if name in twins or not graph.has(name) or not graph.is_view(name):
        return twins.get(name, name)
    root, offset = graph.root(name)
    if root not in twins:
        if any(source in twins for source in graph.sources(name)):
            raise Unsupported(f"{name} shows parts of arrays, which are not computed twice")
        return name
    twins[name] = graph.add_view(twins[root], name, graph.shape(name), graph.strides(name), offset)
    return twins[name]


def _unite(plan: FusionPlan, members: Sequence[Node], group: Group) -> None:
    """Make one group of all members, by the merges that are ``group``, then by others. Raises RefusedMerge."""
    in_order = sorted(members, key=lambda node: plan.group_of(node).last)
    for number, places in enumerate(group[2]):
        if not set(places) <= set(range(len(members))):
            raise RefusedMerge(group, number, f"it has no nodes {places}")
        first, second = (plan.group_of(members[k]) for k in places)
        reason = "they are one already" if first is second else _attempt(plan, first, second)
        if reason is not None:
            raise RefusedMerge(group, number, reason)
    while len(groups := list(dict.fromkeys(plan.group_of(node) for node in in_order))) > 1:
        for one, other in ((a, b) for k, b in enumerate(groups) for a in reversed(groups[:k])):
            reason = _attempt(plan, *_in_order(plan, one, other))
            if reason is None:
                break
        else:
            raise RefusedMerge(group, len(group[2]), str(reason))


def _in_order(plan: FusionPlan, one: FusionGroup, other: FusionGroup) -> tuple[FusionGroup, FusionGroup]:
    early, late = sorted((one, other), key=lambda g: g.last)
    return (late, early) if early in plan.readers_of(late) else (early, late)


def _attempt(plan: FusionPlan, first: FusionGroup, second: FusionGroup) -> str | None:
    return plan.why_not(first, second) or plan.attempt(first, second)
