"""If, Loop and Scan: their graphs become the bodies of regions.

A node that holds graphs has the values that these read by name as further inputs; its attribute ``captures`` has their
names, in the order of those inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dace
import numpy as np

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim, Graph
from daceopt.ir.region_builder import Body, ChoiceBuilder, LoopBuilder
from daceopt.ops import subgraph, values
from daceopt.ops.operator import Operator
from daceopt.ops.registry import ANY, Names, lowering, present, supports, without_gradient

_LONGEST = 2**31  # trip counts from which on a position is not computed at compile time


def _explicit(node: Operator, inputs: Names) -> Names:
    return inputs[: len(inputs) - len(node.attribute("captures", ()))]


def _outside(node: Operator, inputs: Names) -> dict[str, str]:
    """Arrays that the node's graphs read by name."""
    names = node.attribute("captures", ())
    return dict(zip(names, present(inputs[len(inputs) - len(names) :] if names else []), strict=True))


class _Scope:
    """Imports a graph attribute into the body of a region."""

    def __init__(self, body: Body, outside: Mapping[str, str]):
        self.body, self._outside = body, outside

    def run(self, proto: Any, inputs: Sequence[str]) -> list[str]:
        """The arrays of the body that are its outputs, given those that are its inputs."""
        if len(inputs) != len(proto.input):
            raise Unsupported(f"graph {proto.name!r} takes {len(proto.input)} values and is given {len(inputs)}")
        arrays = {v.name: n for v, n in zip(proto.input, inputs)}
        for name in subgraph.free_names(proto):
            if name not in self._outside:
                raise Unsupported(f"graph {proto.name!r} reads {name!r}, which nothing outside defines")
            arrays[name] = self._capture(self._outside[name])
        return subgraph.add(self.body.b, proto, arrays)

    def _capture(self, name: str) -> str:
        """What is known of small integers outside is known inside."""
        outer, body = self.body.outer, self.body.graph
        known = values.known(outer, name) if outer.dtype(name) in (dace.int32, dace.int64) else None
        if known is None or name in outer.constants:
            return self.body.capture(name)
        if all(isinstance(v, int) for v in known):
            shape = [int(e) for e in outer.shape(name)]
            value = np.asarray(known, outer.dtype(name).as_numpy_dtype()).reshape(shape)
            return body.add_constant(outer.source_names.get(name, name), value)
        inner = self.body.capture(name)
        body.shape_values[inner] = known
        return inner


def _check_same(graph: Graph, found: str, outer: Graph, wanted: str, what: str, drop: int | None = None) -> None:
    """``found`` has the type of ``wanted`` (an array of ``outer``) and its shape, less axis ``drop``."""
    shape = outer.shape(wanted)
    expected = shape if drop is None else shape[:drop] + shape[drop + 1 :]
    if graph.shape(found) != expected or graph.dtype(found) != outer.dtype(wanted):
        raise Unsupported(
            f"{what} has shape {graph.shape(found)} of {graph.dtype(found)}, expected {expected} of "
            f"{outer.dtype(wanted)}"
        )


# -------------------------------------------------------------------- If


@lowering("If", types=ANY)
def if_(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """A choice at run time; where the condition is known, the nodes of the branch that is taken."""
    condition, outside = str(inputs[0]), _outside(node, inputs)
    _check_single(b.graph, [condition], "the condition of If")
    taken = values.scalar_value(b.graph, condition)
    if taken is not None:
        results = subgraph.add(b, _branch(node, bool(taken)), outside)
        for result, out in zip(results, outputs):
            if out is not None:
                b.graph.add_operator("Identity", [result], [out])
        return
    choice = ChoiceBuilder(b.graph, "if", _single(b, condition))
    for body, which in zip(choice.bodies, (True, False)):
        results = _Scope(body, outside).run(_branch(node, which), [])
        kept = [(r, out) for r, out in zip(results, outputs) if out is not None]
        for result, out in kept:
            name = "then_branch" if which else "else_branch"
            _check_same(body.graph, result, b.graph, out, f"a result of {name}")
        body.declare_outputs([r for r, _ in kept])
    choice.finish(present(outputs))


def _branch(node: Operator, taken: bool) -> Any:
    return node.attribute("then_branch" if taken else "else_branch")


# -------------------------------------------------------------------- Loop


@lowering("Loop", types=ANY)
def loop(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """For, while, or both; outputs after the carried values collect one slice per iteration."""
    graph, proto = b.graph, node.attribute("body")
    count, condition, *initial = [*_explicit(node, inputs), None, None][: max(2, len(_explicit(node, inputs)))]
    _check_single(graph, [count, condition], "the trip count or condition of Loop")
    carried = len(initial)
    if None in initial or len(proto.output) < carried + 1:
        raise Unsupported("the carried values of Loop and the results of its body do not match")
    slices: Names = [*outputs[carried:], *[None] * (len(proto.output) - 1 - len(outputs))]
    trips, limit = _trips(b, count), _limit(graph, slices)
    builder = LoopBuilder(graph, "loop")
    start = b.constant(np.array(True)) if condition is None else _single(b, condition)
    going = builder.carry(start)
    states = [builder.carry(str(n)) for n in initial]
    bound = [n for n in (trips, limit) if isinstance(n, int) and n < _LONGEST]
    number = _iteration(builder, proto.input[0], known=bool(bound) or _is_symbolic(trips))
    goes_on, *results = _Scope(builder, _outside(node, inputs)).run(proto, [number, going, *states])
    for k, (state, result) in enumerate(zip(states, results)):
        _check_same(builder.graph, result, builder.graph, state, f"carried value {k} of the body")
    stacked = []
    for result, out in zip(results[carried:], slices):
        if out is not None:
            _check_same(builder.graph, result, graph, out, "a scan output of the body", drop=0)
            stacked.append((result, out, 0, False))
    goes_on, yes = _single(builder.b, goes_on), builder.b.constant(np.array(True))
    if values.scalar_value(graph, start) and _stays_true(builder.graph, goes_on, going):
        builder.fix(going, yes)
        results = [yes if r == going else r for r in results]
        stacked = [(yes if s[0] == going else s[0], *s[1:]) for s in stacked]
        builder.finish(results[:carried], _padded(outputs, carried), stacked, trips=trips)
    else:
        finals = [None, *_padded(outputs, carried)]
        builder.finish([goes_on, *results[:carried]], finals, stacked, trips=trips, condition=0)


def _padded(outputs: Names, count: int) -> Names:
    return [*outputs[:count], *[None] * (count - len(outputs))]


def _is_symbolic(trips: Dim | str | None) -> bool:
    return trips is not None and not isinstance(trips, (int, str))


def _trips(b: Builder, count: str | None) -> Dim | str | None:
    """A number or expression where the count is known, else the array that holds it; None without one."""
    if count is None:
        return None
    known = values.known(b.graph, count)
    if known is None or len(known) != 1:
        return _single(b, count)
    return max(known[0], 0) if isinstance(known[0], int) else known[0]


def _limit(graph: Graph, slices: Names) -> Dim | None:
    """The number of iterations that the scan outputs have room for."""
    extents = {graph.shape(n)[0] if graph.shape(n) else None for n in slices if n is not None}
    if len(extents) > 1 or None in extents:
        raise Unsupported(f"the scan outputs of Loop have extents {sorted(map(str, extents))}; expected one number")
    return next(iter(extents), None)


def _iteration(builder: LoopBuilder, declared: Any, known: bool) -> str:
    """The number of the iteration as an int64 array; its value is an expression where the range is ``known``."""
    rank = len(declared.type.tensor_type.shape.dim)
    number = builder.graph.add_array("iteration", (1,) * rank, dace.int64)
    builder.b.map((1,) * rank, {}, {"out": (number, lambda *i: i)}, lambda i: builder.counter, label="iteration")
    if known:
        builder.graph.shape_values[number] = (builder.counter,)
    return number


def _stays_true(graph: Graph, name: str, previous: str) -> bool:
    """Is the condition the one before, or a constant that is true?"""
    while True:
        while graph.is_view(name):
            name = graph.view_source(name)
        if name == previous:
            return True
        if name in graph.constants:
            return bool(graph.constants[name].all())
        producer = graph.producer(name)
        if getattr(producer, "op_type", None) != "Identity":
            return False
        name = str(graph.inputs_of(producer)[0])


# -------------------------------------------------------------------- Scan


@lowering("Scan", types=ANY)
def scan(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """One iteration for each slice of the scanned inputs; version 8 does this for each element of a batch."""
    given, outside = _explicit(node, inputs), _outside(node, inputs)
    count = int(node.attribute("num_scan_inputs"))
    _check_scanned(b.graph, given, count, 1 if node.since_version < 9 else 0)
    if node.since_version < 9:
        _scan_batch(b, node, given[1:], outputs, outside)
        return
    states, scanned = present(given)[: len(given) - count], present(given)[len(given) - count :]
    axes = [a % len(b.graph.shape(n)) for a, n in zip(_list(node, "scan_input_axes", count), scanned, strict=True)]
    results = len(outputs) - len(states)
    out_axes = _list(node, "scan_output_axes", results)
    reverse = _list(node, "scan_output_directions", results)
    stacked = [
        (n, a % len(b.graph.shape(n)), bool(r)) if n is not None else None
        for n, a, r in zip(outputs[len(states) :], out_axes, reverse)
    ]
    backward = [bool(d) for d in _list(node, "scan_input_directions", count)]
    _scan(b, node.attribute("body"), states, list(zip(scanned, axes, backward)), outputs, stacked, outside)


def _check_scanned(graph: Graph, given: Names, count: int, batched: int) -> None:
    operands = given[batched:]
    if batched and given[0] is not None:
        raise Unsupported("sequence_lens is given; expected sequences of the same length")
    if not 1 <= count <= len(operands) or None in operands:
        raise Unsupported(f"num_scan_inputs is {count} of {len(operands)}")
    scanned = operands[len(operands) - count :]
    if any(len(graph.shape(str(n))) < 1 + batched for n in scanned):
        raise Unsupported("a scanned input has no axis to scan")


def _list(node: Operator, name: str, count: int) -> list[int]:
    found = list(node.attribute(name) or [0] * count)
    if len(found) < count:
        raise Unsupported(f"{name} has {len(found)} entries, expected {count}")
    return found[:count]


def _scan(
    b: Builder,
    proto: Any,
    states: Sequence[str],
    scanned: Sequence[tuple[str, int, bool]],
    outputs: Names,
    stacked: Sequence[tuple[str, int, bool] | None],
    outside: Mapping[str, str],
) -> None:
    """``scanned``: (array, axis, from the end?); ``stacked``: the same for the outputs after the states'."""
    extents = {b.graph.shape(name)[axis] for name, axis, _ in (*scanned, *filter(None, stacked))}
    if len(extents) != 1:
        raise Unsupported(f"scanned axes have extents {sorted(map(str, extents))}; expected the same of all")
    (steps,) = extents
    builder = LoopBuilder(b.graph, "scan")
    t = builder.counter
    carried = [builder.carry(n) for n in states]
    slices = [builder.slice_of(n, axis, steps - 1 - t if back else t) for n, axis, back in scanned]
    results = _Scope(builder, outside).run(proto, [*carried, *slices])
    for k, (state, result) in enumerate(zip(carried, results)):
        _check_same(builder.graph, result, builder.graph, state, f"state {k} of the body")
    kept = [(result, *place) for result, place in zip(results[len(states) :], stacked) if place is not None]
    for result, out, axis, _ in kept:
        _check_same(builder.graph, result, b.graph, out, "a scan output of the body", drop=axis)
    builder.finish(results[: len(states)], _padded(outputs, len(states)), kept, trips=steps)


def _scan_batch(b: Builder, node: Operator, given: Names, outputs: Names, outside: Mapping[str, str]) -> None:
    """A loop over the first axis of everything around the scan of the second axis."""
    count = int(node.attribute("num_scan_inputs"))
    operands = present(given)
    builder = LoopBuilder(b.graph, "batch")
    parts = [builder.slice_of(n, 0, builder.counter) for n in operands]
    own = {name: builder.capture(n) for name, n in outside.items()}
    split = len(parts) - count
    made: Names = []
    for out in outputs:
        shape = None if out is None else b.graph.shape(out)[1:]
        made.append(None if shape is None else builder.graph.add_array("part", shape, b.graph.dtype(str(out))))
    scanned = [(n, 0, bool(d)) for n, d in zip(parts[split:], _list(node, "directions", count))]
    stacked = [None if n is None else (n, 0, False) for n in made[split:]]
    _scan(builder.b, node.attribute("body"), parts[:split], scanned, made, stacked, own)
    collected = [(inner, out, 0, False) for inner, out in zip(made, outputs) if inner is not None and out is not None]
    builder.finish([], [], collected, trips=b.graph.shape(operands[0])[0])


# -------------------------------------------------------------------- what is refused


@supports("If", "Loop", "Scan")
def why_not(graph: Graph, node: Operator) -> str | None:
    """The reason why a graph inside cannot be imported, found by importing it into a copy of the operands.

    It may go away once a condition, a trip count or a small operand of the graph is known.
    """
    inputs = graph.inputs_of(node)
    trial, operands, results = subgraph.trial(graph, inputs, graph.outputs_of(node))
    try:
        {"If": if_, "Loop": loop, "Scan": scan}[node.op_type](Builder(trial, "trial"), node, operands, results)
    except Unsupported as error:
        undecided = [k for k, n in enumerate(inputs) if n is not None and _decides(graph, n)]
        return values.UnknownValue.at(str(error), *undecided) if undecided else str(error)
    return None


def _decides(graph: Graph, name: str) -> bool:
    """Is this a small operand whose value is not known, and might be a shape, a count or a condition?"""
    small = isinstance(graph.size(name), int) and graph.size(name) <= 64 and not types.is_float(graph.dtype(name))
    return small and values.known(graph, name) is None


def _single(b: Builder, name: str) -> str:
    """An array of one element as one of rank 0."""
    return b.reshape(name, ()) if b.graph.shape(name) else name


def _check_single(graph: Graph, names: Names, what: str) -> None:
    if any(n is not None and graph.size(n) != 1 for n in names):
        raise Unsupported(f"{what} has more than one element")


without_gradient("If", "Loop", "Scan")
