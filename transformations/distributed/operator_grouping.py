"""Fuse exactly the groups of operators that a strategy names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dace import nodes

from daceopt.errors import StrategyError, Unsupported
from daceopt.ir.fusion_plan import FusionGroup, FusionPlan, emit
from daceopt.ir.graph import Graph
from daceopt.ir.kernel import Kernel
from daceopt.ir.program import Program
from daceopt.passes.transform import Outcome, Transformation

DIRECTIONS = ("forward", "backward")

Group = tuple[tuple[str, ...], tuple[str, ...]]  # nodes, and those of them of which there is one outside, too


def stable_name(direction: str, graph: Graph, node: Any) -> str:
    """How strategies call a node: ``forward/`` or ``backward/`` and the first array that it writes."""
    return f"{direction}/{next(n for n in graph.outputs_of(node) if n is not None)}"


@dataclass(frozen=True)
class OperatorGrouping(Transformation):
    """Merge the kernels of each group into one, and nothing else.

    before:  a = f(x)    b = g(a)    c = h(a)                      groups=((("b", "a"), ("a",)),)
    after:   a = f(x)    b = { t = f(x); g(t) }    c = h(a)        where a is duplicated; without that, one of both

    DisCo (Yi et al., 2022, sections 2.2 and 3.2): non-duplicate and duplicate fusion as a search found them.
    ``groups``: names of nodes (:func:`stable_name`), and those of them of which the group has a copy of its own. Raises
    StrategyError where a name is not in the program, or nodes cannot be one kernel: the strategy is for another graph.
    """

    level: ClassVar[str] = "local"
    groups: tuple[Group, ...] = ()
    max_stages: int = 48

    def run_program(self, program: Program) -> Outcome:
        """Each group in the direction that its names say."""
        done: list[str] = []
        rest = set(self.groups)
        for direction, graph in zip(DIRECTIONS, program.directions()):
            own = [g for g in self.groups if g[0] and g[0][0].startswith(f"{direction}/")]
            rest.difference_update(own)
            done += self._group(graph, direction, own)
        if rest:
            raise StrategyError(f"the group of {sorted(rest)[0][0][:1]} is in no direction of the program")
        program.align()
        return Outcome(done, [])

    def _group(self, graph: Graph, direction: str, groups: Sequence[Group]) -> list[str]:
        if not groups:
            return []
        found = [[_node(graph, direction, name) for name in names] for names, _ in groups]
        graph.order = graph.nodes()  # what is fused stays where it was: that is what was simulated
        position = {node: k for k, node in enumerate(graph.nodes())}
        kernels = {
            a: (position[graph.producer(a)], Kernel.extract(graph, graph.producer(a))) for own in found for a in own
        }
        members: list[list[str]] = []  # the arrays that nodes of a group write
        for (names, copied), own in zip(groups, found):
            ordered = sorted(zip(own, names), key=lambda pair: kernels[pair[0]][0])
            members.append([*_with_copies(graph, kernels, [(a, n in copied) for a, n in ordered])])
        plan = FusionPlan(graph, self.max_stages, keeps_order=False)
        for (names, _), arrays in zip(groups, members):
            _unite(plan, [graph.producer(a) for a in arrays], names)
        done = []
        for group in plan.fused():
            assert group.kernel is not None
            done.append(" + ".join(str(getattr(m, "label", m)) for m in group.members))
            emit(graph, group.members, group.kernel)
        graph.prune()
        return done


def _node(graph: Graph, direction: str, name: str) -> str:
    """The array by which a node is named. Raises StrategyError."""
    prefix, _, array = name.partition("/")
    known = prefix == direction and array in graph.sdfg.arrays
    node = graph.producer(array) if known else None
    if not isinstance(node, nodes.MapEntry):
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
            kernel.named_apart(graph).over({**changed, **{n: twins[n] for n in written}}).emit(graph)
        elif changed:
            graph.take_out([graph.producer(array)])
            kernel.over(changed).emit(graph)
        yield twins[array] if is_copy else array


def _names(accesses: dict[str, Any]) -> list[str]:
    return [access.array for access in accesses.values()]


def _twin(graph: Graph, name: str, twins: dict[str, str]) -> str:
    """What stands for ``name`` where what it shows was copied: a view of the copy, for a view."""
    if name in twins or name not in graph.sdfg.arrays or not graph.is_view(name):
        return twins.get(name, name)
    root, offset = graph.root(name)
    if root not in twins:
        if any(source in twins for source in graph.sources(name)):
            raise Unsupported(f"{name} shows parts of arrays, which are not computed twice")
        return name
    twins[name] = graph.add_view(twins[root], name, graph.shape(name), graph.strides(name), offset)
    return twins[name]


def _unite(plan: FusionPlan, members: Sequence[Any], names: Sequence[str]) -> None:
    """Make one group of all members, by merging two at a time. Raises StrategyError with the last reason."""
    while len(groups := list(dict.fromkeys(plan.group_of(node) for node in members))) > 1:
        for one, other in ((a, b) for k, b in enumerate(groups) for a in reversed(groups[:k])):
            reason = _attempt(plan, one, other)
            if reason is None:
                break
        else:
            raise StrategyError(f"{' + '.join(names)} cannot be one kernel: {reason}. Search the strategy again")


def _attempt(plan: FusionPlan, one: FusionGroup, other: FusionGroup) -> str | None:
    early, late = sorted((one, other), key=lambda g: g.last)
    first, second = (late, early) if early in plan.readers_of(late) else (early, late)
    return plan.why_not(first, second) or plan.attempt(first, second)
