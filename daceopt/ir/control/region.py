"""Control flow as compute nodes: a choice between two graphs, and a graph that is repeated.

A region is in its graph like a library node, over whole arrays. Its bodies are graphs of their own, over the size
symbols of the graph around them; what a body reads from outside is an input of the body, bound to an operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import dace
import dace.library
import numpy as np
import sympy
from dace.sdfg.graph import generate_element_id
from dace.sdfg.nodes import LibraryNode

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.buffers import Memory
from daceopt.ir.interpreter.interpret import interpret, interprets
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Counter

CONDITION, TRIPS = "Condition", "Trips"


class Region(LibraryNode):
    """Base of control flow: ``bodies``, and for each of them which operand an input of it stands for.

    ``captures[b]``: input of ``bodies[b]`` -> connector of this node whose array it is. Every body output is written by
    a node of the body and is an array of its own, as graph outputs are.
    """

    implementations: ClassVar[dict[str, Any]] = {}
    default_implementation: ClassVar[str | None] = None

    def __init__(self, name: str, bodies: Sequence[Graph] = (), captures: Sequence[Mapping[str, str]] = ()):
        super().__init__(name)
        self._bodies = list(bodies)
        self._captures = [dict(c) for c in captures]

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        memo[id(self._bodies)] = [body.copy() for body in self._bodies]
        twin = super().__deepcopy__(memo)
        twin._guid = generate_element_id(twin)
        return twin

    @property
    def bodies(self) -> list[Graph]:
        return self._bodies

    @property
    def captures(self) -> list[dict[str, str]]:
        return self._captures


@dace.library.node
class Conditional(Region):
    """``bodies[0]`` runs when the bool at ``Condition`` is true, else ``bodies[1]``; output k of either is ``Out{k}``,
    of the same shape and type."""

    def __init__(self, name: str = "if", bodies: Sequence[Graph] = (), captures: Sequence[Mapping[str, str]] = ()):
        super().__init__(name, bodies, captures)


@dataclass(frozen=True)
class Carried:
    """A value that the next iteration reads: the body's input, the operand it starts as, the output that it ends as
    (None where nobody asks)."""

    input: str
    initial: str
    final: str | None


@dataclass(frozen=True)
class Stacked:
    """An output that collects one slice per iteration along ``axis``, from the end if ``reverse``.

    ``extent``: of a slice along the axis, which it then has, too; None: one element, and the slice has no such axis.
    """

    connector: str
    axis: int = 0
    reverse: bool = False
    extent: Dim | None = None


@dace.library.node
class Repeat(Region):
    """``for counter in range(trips): body``, for as long as the carried bool number ``condition`` is true.

    The outputs of the body are the next carried values, then one slice for each ``stacked`` output. ``trips`` is an
    expression over size symbols; None takes the int64 at operand ``Trips``, where one is given. ``limit`` is the number
    of slices for which stacked axes have room: a loop that makes fewer or more iterations reports an error and never
    writes beyond. A ``descending`` loop has known ``trips`` and counts down.
    """

    def __init__(
        self,
        name: str = "loop",
        body: Graph | None = None,
        captures: Mapping[str, str] | None = None,
        *,
        counter: sympy.Symbol | None = None,
        trips: Dim | None = None,
        carried: Sequence[Carried] = (),
        stacked: Sequence[Stacked] = (),
        condition: int | None = None,
        limit: Dim | None = None,
        descending: bool = False,
    ):
        super().__init__(name, [body] if body is not None else [], [captures or {}] if body is not None else [])
        self._counter, self._trips, self._limit = counter, trips, limit
        self._carried, self._stacked, self._condition = list(carried), list(stacked), condition
        self._descending = descending
        self._states: dict[str, str] = {}

    @property
    def body(self) -> Graph:
        return self._bodies[0]

    @property
    def counter(self) -> sympy.Symbol:
        """The symbol that counts iterations from zero."""
        return self._counter

    @property
    def trips(self) -> Dim | None:
        return self._trips

    @property
    def limit(self) -> Dim | None:
        return self._limit

    @property
    def carried(self) -> list[Carried]:
        return self._carried

    @property
    def stacked(self) -> list[Stacked]:
        return self._stacked

    @property
    def condition(self) -> int | None:
        return self._condition

    @property
    def descending(self) -> bool:
        """Does the counter run from ``trips - 1`` down to zero?"""
        return self._descending

    @property
    def states(self) -> dict[str, str]:
        """Array of the body, a carried value or another -> connector where its values in all iterations are collected,
        if they are."""
        return self._states

    @property
    def is_checked(self) -> bool:
        """May the number of iterations differ from the extent of the stacked outputs?"""
        return bool(self._stacked) and (self._condition is not None or self._trips != self._limit)


def counter_for(graph: Graph) -> sympy.Symbol:
    """A symbol that counts a loop in ``graph``: none of those around it."""
    k = 0
    while f"step{k}" in graph.size_names:
        k += 1
    return Counter(f"step{k}")


def body_of(graph: Graph, name: str, counter: sympy.Symbol | None = None) -> Graph:
    """An empty body for a region of ``graph``: it knows the sizes of ``graph`` and, if given, a loop's counter."""
    body = Graph(name, graph.options.target)
    body.source.opset, body.source.trips = dict(graph.source.opset), dict(graph.source.trips)
    body.size_names = {**graph.size_names, **({str(counter): None} if counter is not None else {})}
    return body


def iterations(node: Region) -> Dim:
    """How often the bodies of a region run, for estimates: once where that is not known before running."""
    if not isinstance(node, Repeat):
        return 1
    return next((n for n in (node.limit, node.trips) if n is not None), 1)


def regions(graph: Graph) -> list[Region]:
    """The regions of ``graph`` itself, in the order in which they run."""
    return [n for n in graph.nodes() if isinstance(n, Region)]


def bodies(graph: Graph) -> Iterator[Graph]:
    """The bodies of all regions of ``graph``, not those inside of them."""
    for node in regions(graph):
        yield from node.bodies


def everything(graph: Graph) -> Iterator[Graph]:
    """``graph``, then all bodies below it."""
    yield graph
    for body in bodies(graph):
        yield from everything(body)


# -------------------------------------------------------------------- edits


def tidy(graph: Graph) -> None:
    """Drop operands that no body reads any more, and results that nothing reads."""
    dropped = False
    for node in regions(graph):
        _drop_results(graph, node)
        for body in node.bodies:
            body.prune()
            tidy(body)
        dropped |= drop_operands(graph, node)
    if dropped:
        graph.prune()


def _drop_results(graph: Graph, node: Region) -> None:
    unread = {c for c, n in graph.writes(node).items() if not graph.is_used(n)}
    if not unread or len(unread) == len(node.out_connectors):
        return
    if isinstance(node, Conditional):
        return
    assert isinstance(node, Repeat)
    node._carried = [Carried(c.input, c.initial, None if c.final in unread else c.final) for c in node.carried]
    stays = [s.connector not in unread for s in node.stacked]
    if not any(stays):
        # what counts the iterations stays, so that a loop of the wrong length is still reported
        stays = [True, *stays[1:]] if node.is_checked and stays else stays
        unread -= {s.connector for s, k in zip(node.stacked, stays) if k}
    outputs = node.body.outputs
    first = len(node.carried)
    node.body.outputs = outputs[:first] + [n for n, keep in zip(outputs[first:], stays) if keep]
    node._stacked = [s for s, keep in zip(node.stacked, stays) if keep]
    node._states = {name: c for name, c in node.states.items() if c not in unread}
    for connector in unread:
        graph.drop_write(node, connector)


def drop_operands(graph: Graph, node: Region) -> bool:
    """Drop operands that no body of ``node`` reads; True when there were any."""
    for body, captured in zip(node.bodies, node.captures):
        for name in [n for n in captured if not body.is_read(n) and n not in body.outputs]:
            del captured[name]
            body.inputs.remove(name)
    used = {c for captured in node.captures for c in captured.values()} | {CONDITION, TRIPS}
    used |= {c.initial for c in node.carried} if isinstance(node, Repeat) else set()
    unused = [c for c in graph.reads(node) if c not in used]
    for connector in unused:
        graph.drop_read(node, connector)
    return bool(unused)


def keep_states(graph: Graph, node: Repeat) -> None:
    """Collect every carried value as it is at the begin of each iteration; ``node.trips`` is known."""
    keep(graph, node, [c.input for c in node.carried])


def keep(graph: Graph, node: Repeat, arrays: Iterable[str]) -> None:
    """Collect ``arrays`` of the body, inputs or results of its nodes, in each iteration; ``node.trips`` is known."""
    body = node.body
    for array in arrays:
        if array in node.states:
            continue
        body.add_output(array if body.producers(array) else Builder(body, "state").copy(array))
        name = graph.add_array("states", (node.trips, *body.shape(array)), body.dtype(array))
        connector = f"States{len(node.states)}"
        graph.write(node, connector, name)
        node.stacked.append(Stacked(connector))
        node.states[array] = connector
    node._limit = node.trips


def operand(graph: Graph, node: Region, name: str) -> str:
    """The connector through which ``node`` reads the array ``name`` of ``graph``; a new one if there is none."""
    for connector, array in graph.reads(node).items():
        if array == name and connector not in (CONDITION, TRIPS):
            return connector
    connectors, k = set(node.in_connectors), 0
    while f"In{k}" in connectors:
        k += 1
    graph.read(node, f"In{k}", name)
    return f"In{k}"


# -------------------------------------------------------------------- execution


def _execute(
    memory: Memory, node: Region, which: int, values: Mapping[str, np.ndarray], t: int | None
) -> list[np.ndarray]:
    body, reads = node.bodies[which], memory.graph.reads(node)
    feeds = {name: memory.array(reads[connector]) for name, connector in node.captures[which].items()}
    sizes = dict(memory.sizes)
    if t is not None and isinstance(node, Repeat):
        sizes[str(node.counter)] = t
    dtype = np.float64 if memory.reference else None
    values_after = interpret(body, {**feeds, **values}, dtype, sizes, memory.disturbance)
    return [values_after[n] for n in body.outputs]


@interprets("Conditional")
def _conditional(memory: Memory, node: Conditional) -> None:
    reads, writes = memory.graph.reads(node), memory.graph.writes(node)
    condition = bool(memory.array(reads[CONDITION]).reshape(()))
    for k, value in enumerate(_execute(memory, node, 0 if condition else 1, {}, None)):
        memory.store(writes[f"Out{k}"], value)


@interprets("Repeat")
def _repeat(memory: Memory, node: Repeat) -> None:
    reads, writes = memory.graph.reads(node), memory.graph.writes(node)
    values = {c.input: np.array(memory.array(reads[c.initial])) for c in node.carried}
    count = None
    if node.trips is not None:
        count = memory.number(node.trips)
    elif TRIPS in reads:
        count = int(memory.array(reads[TRIPS]).reshape(()))
    limit = None if node.limit is None else memory.number(node.limit)
    test = None if node.condition is None else node.carried[node.condition].input
    trips = 0
    while (count is None or trips < count) and (test is None or bool(values[test].reshape(()))):
        if trips == limit:
            raise DaceoptError(f"{node.label}: more iterations than the {limit} that its outputs have room for")
        t = (count or 0) - 1 - trips if node.descending else trips
        results = _execute(memory, node, 0, values, t)
        values = dict(zip(values, results))
        for s, value in zip(node.stacked, results[len(node.carried) :]):
            target = np.moveaxis(memory.array(writes[s.connector]), s.axis, 0)
            place = (limit or 0) - 1 - t if s.reverse else t
            if s.extent is None:
                target[place] = value
                continue
            extent = memory.number(s.extent)
            target[place * extent : (place + 1) * extent] = np.moveaxis(value, s.axis, 0)
        trips += 1
    if node.is_checked and trips != limit:
        raise DaceoptError(f"{node.label}: {trips} iterations, but its outputs have an extent of {limit}")
    for c in node.carried:
        if c.final is not None:
            memory.store(writes[c.final], values[c.input])


def stacked_offset(node: Repeat, stacked: Stacked, stride: Dim) -> Dim:
    """Where the slice of the present iteration starts in a stacked output."""
    assert node.limit is not None
    position: Dim = node.limit - 1 - node.counter if stacked.reverse else node.counter
    return dim(position * stride * (1 if stacked.extent is None else stacked.extent))
