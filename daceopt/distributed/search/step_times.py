"""How long what a step consists of takes: its library calls, and the kernels that a recipe makes, as they are in the
finished program, timed once on each machine.

One rate for all calls would be wrong by what shapes and layouts make of it. What does not stand alone is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dace.sdfg.nodes import LibraryNode

from daceopt import libs, system
from daceopt._version import __version__
from daceopt.cost.standing_alone import alone, why_not_alone
from daceopt.distributed.search.kernel_samples import threads
from daceopt.ir.control.region import Region
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.collective import Collective
from daceopt.ir.nodes.library import DenseNode, HostCall
from daceopt.ir.scalar import types
from daceopt.ir.text import kernel_text
from daceopt.ir.text.render import render
from daceopt.libs.kernel_times import kernel_times
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.store.cache import key
from daceopt.store.values import Values

if TYPE_CHECKING:
    from daceopt.distributed.search.operator_costs import OperatorReach
    from daceopt.distributed.search.program_operators import Estimate, ProgramOperators
    from daceopt.distributed.search.step_capture import CapturedStep
    from daceopt.distributed.search.training_graph import KernelGroup
    from daceopt.ir.graph.graph import Graph

_KIND, _VERSION = "step-times", 2
_SECONDS = Values(_KIND, float)
_RUNS = 9
_MOST_BYTES = 512 << 20  # of the operands of calls that are timed in one program
_OWN = frozenset(LibraryNode.__properties__)


class StepTimes(NamedTuple):
    """``calls``: seconds by node of the captured program; ``kernels``: the arrays that each kernel of the finished one
    writes, as ``forward/<array>``, and its seconds."""

    calls: dict[Any, float]
    kernels: list[tuple[frozenset[str], float]]


@dataclass
class _Placed:
    """A node of the finished program, where it is there, and what it is of the captured one: None for a kernel."""

    node: Any
    captured: Any
    graph: Graph
    direction: str
    position: int
    identity: str
    bytes: int


def measure(step: CapturedStep, cores: int = 1, kernels: bool = False) -> StepTimes:
    """Seconds of the library calls of ``step``, of what it repeats, and where asked of its ``kernels``, on ``cores``.

    They are timed in the order of the step, so that operands come from where a step has them, in the layouts that the
    rest of the recipe gives them; what is alike once. Left out are those that write parts of arrays, call Python or
    exchange. Raises BuildError where the compiler fails.
    """
    nodes = [n for n in _nodes(step, cores) if kernels or n.captured is not None]
    seconds_of = {n.identity: _SECONDS.find(n.identity) for n in nodes}
    missing = {n.identity: n for n in reversed(nodes) if seconds_of[n.identity] is None}
    for some in _together([n for n in nodes if missing.get(n.identity) is n]):
        for node, seconds in zip(some, _time(some, cores)):
            seconds_of[node.identity] = seconds
            _SECONDS.keep(node.identity, seconds)
    times = [(n, value) for n in nodes if (value := seconds_of[n.identity]) is not None]
    calls = {n.captured: value for n, value in times if n.captured is not None}
    return StepTimes(calls, [(_writes(n), value) for n, value in times if n.captured is None])


def _writes(node: _Placed) -> frozenset[str]:
    return frozenset(f"{node.direction}/{a}" for a in node.graph.outputs_of(node.node) if a is not None)


def of_groups(
    kernels: Sequence[tuple[frozenset[str], float]],
    operators: ProgramOperators,
    groups: Iterable[KernelGroup],
    estimate: Estimate,
) -> dict[frozenset[int], float]:
    """Seconds of groups that are the kernels of a recipe, by their members.

    A kernel belongs to the first group that writes one of its arrays. Later steps rename arrays, and fuse once more:
    groups that are left take as long together as the kernels that are left, in the proportion of their estimates. Where
    no kernel is left they are not among what is given.
    """
    reach = operators.reach
    owner: dict[str, frozenset[int]] = {}
    whole_groups = [
        g for g in groups if g.members == g.exported and all(operators.graph.computations[k].fusible for k in g.members)
    ]
    for group in whole_groups:
        owner |= {a: group.members for k in group.members for a in reach.operators[k].writes if a not in owner}
    totals: dict[frozenset[int], float] = {}
    rest = 0.0
    for arrays, seconds in kernels:
        members = next((owner[a] for a in sorted(arrays) if a in owner), None)
        if members is None:
            rest += seconds
        else:
            totals[members] = totals.get(members, 0.0) + seconds
    others = {g.members: estimate(reach, g) for g in whole_groups if g.members not in totals}
    total = sum(others.values())
    return totals | {members: seconds * rest / total for members, seconds in others.items() if total and rest}


def prefer_known(measured: Mapping[frozenset[int], float], estimate: Estimate) -> Estimate:
    """What was measured of groups without copies, else what ``estimate`` says."""

    def seconds(reach: OperatorReach, group: KernelGroup) -> float:
        own = measured.get(group.members) if group.members == group.exported else None
        return estimate(reach, group) if own is None else own

    return seconds


def _nodes(step: CapturedStep, cores: int) -> Iterator[_Placed]:
    """Those of the program that ``step`` becomes, as far as they stand alone."""
    finished = step.program.copy()
    originals = [_by_kind(graph) for graph in step.program.directions()]
    names = [[graph.outputs_of(n)[0] for n in _flat(_by_kind(graph))] for graph in step.program.directions()]
    rest = (step.fusion, *step.left)
    Runner(Recipe(_KIND, rest)).apply(finished, rest)
    for (direction, graph), own, written in zip(finished.by_direction(), originals, names):
        captured = {twin: node for node, twin in _pairs(graph, own, written)}
        for position, node in enumerate(graph.nodes()):
            if (node in captured or isinstance(node, KernelNode)) and _is_measurable(graph, node):
                identity, moved = _identity(graph, node, cores), _bytes(graph, node)
                yield _Placed(node, captured.get(node), graph, direction, position, identity, moved)


def _is_measurable(graph: Graph, node: Node) -> bool:
    """By itself, and of sizes that are known."""
    is_sized = all(isinstance(graph.size(graph.root(n)[0]), int) for n in _arrays(graph, node))
    return is_sized and why_not_alone(graph, node) is None


def _flat(by_kind: Mapping[str, Sequence[object]]) -> list[Any]:
    return [node for own in by_kind.values() for node in own]


def _by_kind(graph: Graph) -> dict[str, list[Any]]:
    """The calls of a graph by what they are, in their order."""
    kinds: dict[str, list[Any]] = {}
    for node in graph.nodes():
        if isinstance(node, DenseNode | Region) and not isinstance(node, Collective | HostCall):
            kinds.setdefault(type(node).__name__, []).append(node)
    return kinds


def _pairs(graph: Graph, own: Mapping[str, Sequence[Any]], written: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """(node, what it is in the finished ``graph``): by the array that it writes; another layout is another array, and
    then by the order among those of a kind that are as many as before."""
    names = iter(written)
    for kind, before in own.items():
        after = _by_kind(graph).get(kind, [])
        by_name = {name: n for n in after for name in graph.outputs_of(n)}
        for k, (node, name) in enumerate(zip(before, names)):
            twin = by_name.get(name, after[k] if len(after) == len(before) else None)
            if twin is not None:
                yield node, twin


def _identity(graph: Graph, node: Node, cores: int) -> str:
    names = {**graph.reads(node), **graph.writes(node)} if not isinstance(node, KernelNode) else _arrays(graph, node)
    operands = {
        c: (types.name_of(graph.dtype(n)), *map(str, (*graph.shape(n), "by", *graph.strides(n))))
        for c, n in names.items()
    }
    parts: list[Any] = [type(node).__name__, operands]
    if isinstance(node, KernelNode):
        parts += kernel_text.lines(node.kernel)
    else:
        parts += [{k: str(getattr(node, k)) for k in sorted(set(node.__properties__) - _OWN)}]
    if isinstance(node, Region):
        parts += [*map(render, node.bodies), str(getattr(node, "carried", ""))]
    elif isinstance(node, DenseNode):
        chosen = libs.choose(node, graph)
        parts += [chosen.name, chosen.version()]
    return key(_KIND, _VERSION, __version__, system.fingerprint(), cores, *parts)


def _arrays(graph: Graph, node: Node) -> dict[str, str]:
    """Those that a node reads or writes, by their names."""
    return {n: n for n in (*graph.inputs_of(node), *graph.outputs_of(node)) if n is not None}


def _bytes(graph: Graph, node: Node) -> int:
    names = {graph.root(n)[0] for n in _arrays(graph, node)}
    return sum(int(graph.size(n)) * graph.dtype(n).bytes for n in names)


# -------------------------------------------------------------------- measurement


def _together(calls: Sequence[_Placed]) -> Iterator[list[_Placed]]:
    """Calls of one graph whose operands fit into memory beside each other."""
    some: list[_Placed] = []
    for call in calls:
        if some and (call.graph is not some[0].graph or sum(c.bytes for c in [*some, call]) > _MOST_BYTES):
            yield some
            some = []
        some.append(call)
    if some:
        yield some


def _time(calls: Sequence[_Placed], cores: int) -> list[float]:
    """The shortest seconds of each."""
    graph, positions = calls[0].graph, [c.position for c in calls]
    own = alone(graph, positions, in_place=True)
    names = [next(n for n in graph.outputs_of(c.node) if n is not None) for c in calls]
    with threads(cores):
        seconds = kernel_times(own, _RUNS)
    return [seconds[name] for name in names]
