"""If, Loop and Scan: their graphs become the bodies of regions.

A node that holds graphs has the values that these read by name as further inputs; its attribute ``captures`` has their
names, in the order of those inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dace
import numpy as np
import onnx

from daceopt.errors import Unsupported
from daceopt.ir.control.region_builder import Body, ChoiceBuilder, LoopBuilder
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.graph.operator import Operator, make
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, Shape
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import onnx_nodes, subgraph, values
from daceopt.ops.core.registry import ANY, Names, lowering, present, supports

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

    def run(self, proto: onnx.NodeProto, inputs: Sequence[str]) -> list[str]:
        """The arrays of the body that are its outputs, given those that are its inputs."""
        if len(inputs) != len(proto.input):
            raise Unsupported(f"graph {proto.name!r} takes {len(proto.input)} values and is given {len(inputs)}")
        arrays = {v.name: n for v, n in zip(proto.input, inputs)}
        for name in subgraph.free_names(proto):
            if name not in self._outside:
                raise Unsupported(f"graph {proto.name!r} reads {name!r}, which nothing outside defines")
            arrays[name] = self._capture(self._outside[name])
        return onnx_nodes.add(self.body.b, proto, arrays)

    def _capture(self, name: str) -> str:
        """What is known of small integers outside is known inside."""
        outer, body = self.body.outer, self.body.graph
        elements = values.known_elements(outer, name) if outer.dtype(name) in (dace.int32, dace.int64) else None
        if elements is None or name in outer.constants:
            return self.body.capture(name)
        if all(isinstance(v, int) for v in elements):
            shape = [int(e) for e in outer.shape(name)]
            value = np.asarray(elements, outer.dtype(name).as_numpy_dtype()).reshape(shape)
            return body.add_constant(outer.source.names.get(name, name), value)
        inner = self.body.capture(name)
        body.source.shape_values[inner] = elements
        return inner


class _Open:
    """An output whose type is not known yet: the array is added when it is."""

    name: str | None = None


logger = logging.getLogger("daceopt.ops.control_flow")
Results = Sequence["str | _Open | None"]


def _result(graph: Graph, out: str | _Open, shape: Sequence[Dim], dtype: DType, label: str) -> str:
    """The array for a result of that type. Raises Unsupported where another type was declared."""
    if isinstance(out, _Open):
        out.name = graph.add_array("result", shape, dtype)
        return out.name
    if graph.shape(out) != tuple(shape) or graph.dtype(out) != dtype:
        raise Unsupported(
            f"{label} has shape {tuple(shape)} of {types.name_of(dtype)}, expected {graph.shape(out)} of "
            f"{types.name_of(graph.dtype(out))}"
        )
    return out


def _next(builder: LoopBuilder, states: Sequence[str], results: Sequence[str]) -> None:
    """Check that carried values keep their types."""
    graph = builder.graph
    for k, (state, result) in enumerate(zip(states, results, strict=True)):
        _result(graph, state, graph.shape(result), graph.dtype(result), f"carried value {k}, after an iteration,")


def _finals(graph: Graph, initial: Sequence[str], outputs: Results) -> list[str | None]:
    """The arrays for the last carried values."""
    return [
        None if out is None else _result(graph, out, graph.shape(n), graph.dtype(n), "a carried value")
        for n, out in zip(initial, [*outputs, *[None] * len(initial)])
    ]


def _stack(builder: LoopBuilder, result: str, out: str | _Open, axis: int, extent: Dim, back: bool) -> tuple[Any, ...]:
    """An output that collects ``result``; ``axis`` of the whole may count from its end."""
    shape = list(builder.graph.shape(result))
    axis = axis % (len(shape) + 1)
    shape.insert(axis, extent)
    name = _result(builder.outer, out, shape, builder.graph.dtype(result), "a scan output")
    return result, name, axis, back


# -------------------------------------------------------------------- If


@lowering("If", types=ANY)
def if_(b: Builder, node: Operator, inputs: Names, outputs: Results) -> None:
    """A choice at run time; where the condition is known, the nodes of the branch that is taken."""
    condition, outside = require(inputs, 0), _outside(node, inputs)
    _check_single(b.graph, [condition], "the condition of If")
    is_then = values.scalar_value(b.graph, condition)
    if is_then is not None:
        results = onnx_nodes.add(b, _branch(node, bool(is_then)), outside)
        for result, out in zip(results, outputs):
            if out is not None:
                name = _result(b.graph, out, b.graph.shape(result), b.graph.dtype(result), "the branch's result")
                b.graph.add_operator("Identity", [result], [name])
        return
    choice = ChoiceBuilder(b.graph, "if", _single(b, condition))
    declared: list[str | _Open] = [out for out in outputs if out is not None]
    for body, which in zip(choice.bodies, (True, False)):
        results = _Scope(body, outside).run(_branch(node, which), [])
        used = [r for r, out in zip(results, outputs) if out is not None]
        label = f"a result of {'then_branch' if which else 'else_branch'}"
        declared = [
            _result(b.graph, o, body.graph.shape(r), body.graph.dtype(r), label) for r, o in zip(used, declared)
        ]
        body.declare_outputs(used)
    choice.finish([str(n) for n in declared])


def _branch(node: Operator, is_then: bool) -> Any:
    return node.attribute("then_branch" if is_then else "else_branch")


# -------------------------------------------------------------------- Loop


@lowering("Loop", types=ANY)
def loop(b: Builder, node: Operator, inputs: Names, outputs: Results) -> None:
    """For, while, or both; outputs after the carried values collect one slice per iteration."""
    graph, proto = b.graph, node.attribute("body")
    count, condition, *initial = [*_explicit(node, inputs), None, None][: max(2, len(_explicit(node, inputs)))]
    _check_single(graph, [count, condition], "the trip count or condition of Loop")
    carried = len(initial)
    if None in initial or len(proto.output) < carried + 1:
        raise Unsupported("the carried values of Loop and the results of its body do not match")
    slices = [*outputs[carried:], *[None] * (len(proto.output) - 1 - len(outputs))]
    trips = _trips(b, count)
    limit = _limit(graph, slices, trips)
    builder = LoopBuilder(graph, "loop")
    start = b.constant(np.array(True)) if condition is None else _single(b, condition)
    going = builder.carry(start)
    states = [builder.carry(n) for n in all_required(initial)]
    bound = [n for n in (trips, limit) if isinstance(n, int) and n < _LONGEST]
    if bound:
        builder.graph.source.trips[str(builder.counter)] = min(bound)
    number = _iteration(builder, proto.input[0], is_fixed=bool(bound) or _is_symbolic(trips))
    goes_on, *results = _Scope(builder, _outside(node, inputs)).run(proto, [number, going, *states])
    _next(builder, states, results[:carried])
    finals = _finals(graph, present(initial), outputs[:carried])
    stacked = [
        _stack(builder, r, out, 0, _extent(limit), False)
        for r, out in zip(results[carried:], slices)
        if out is not None
    ]
    goes_on, yes = _single(builder.b, goes_on), builder.b.constant(np.array(True))
    if values.scalar_value(graph, start) and _stays_true(builder.graph, goes_on, going):
        builder.fix(going, yes)
        results = [yes if r == going else r for r in results]
        stacked = [(yes if s[0] == going else s[0], *s[1:]) for s in stacked]
        builder.finish(results[:carried], finals, stacked, trips=trips)
    else:
        builder.finish([goes_on, *results[:carried]], [None, *finals], stacked, trips=trips, condition=0)


def _extent(limit: Dim | None) -> Dim:
    if limit is None:
        raise Unsupported("how long a scan output of Loop is depends on a trip count that is not known before running")
    return limit


def _is_symbolic(trips: Dim | str | None) -> bool:
    return trips is not None and not isinstance(trips, (int, str))


def _trips(b: Builder, count: str | None) -> Dim | str | None:
    """A number or expression where the count is known, else the array that holds it; None without one."""
    if count is None:
        return None
    elements = values.known_elements(b.graph, count)
    if elements is None or len(elements) != 1:
        return _single(b, count)
    return max(elements[0], 0) if isinstance(elements[0], int) else elements[0]


def _limit(graph: Graph, slices: Results, trips: Dim | str | None) -> Dim | None:
    """The number of iterations that the scan outputs have room for."""
    declared = [n for n in slices if isinstance(n, str)]
    extents = {graph.shape(n)[0] if graph.shape(n) else None for n in declared}
    if len(extents) > 1 or None in extents:
        raise Unsupported(f"the scan outputs of Loop have extents {sorted(map(str, extents))}; expected one number")
    return next(iter(extents), None if isinstance(trips, str) else trips)


def _iteration(builder: LoopBuilder, declared: onnx.ValueInfoProto, is_fixed: bool) -> str:
    """The number of the iteration as an int64 array; its value is an expression where ``is_fixed``."""
    rank = len(declared.type.tensor_type.shape.dim)
    number = builder.graph.add_array("iteration", (1,) * rank, dace.int64)
    builder.b.map((1,) * rank, {}, {"out": (number, lambda *i: i)}, lambda i: builder.counter, label="iteration")
    if is_fixed:
        builder.graph.source.shape_values[number] = (builder.counter,)
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
        name = graph.operand(producer, 0)


# -------------------------------------------------------------------- Scan


@lowering("Scan", types=ANY)
def scan(b: Builder, node: Operator, inputs: Names, outputs: Results) -> None:
    """One iteration for each slice of the scanned inputs; version 8 does this for each element of a batch."""
    explicit, outside = _explicit(node, inputs), _outside(node, inputs)
    batched = 1 if node.since_version < 9 else 0
    count = int(node.attribute("num_scan_inputs"))
    _check_scanned(b.graph, explicit, count, batched)
    operands = present(explicit[batched:])
    parts = _Scan(
        states=operands[: len(operands) - count],
        scanned=operands[len(operands) - count :],
        axes=_list(node, "scan_input_axes", count),
        backward=_list(node, "directions" if batched else "scan_input_directions", count),
        outputs=outputs,
        out_axes=_list(node, "scan_output_axes", len(outputs) - len(operands) + count),
        out_backward=_list(node, "scan_output_directions", len(outputs) - len(operands) + count),
    )
    if batched:
        _scan_batch(b, node.attribute("body"), parts, outside)
    else:
        _scan(b, node.attribute("body"), parts, outside)


@dataclass(frozen=True)
class _Scan:
    """The operands of a scan, with the axis and direction of each that is sliced."""

    states: list[str]
    scanned: list[str]
    axes: list[int]
    backward: list[int]
    outputs: Results
    out_axes: list[int]
    out_backward: list[int]


def _check_scanned(graph: Graph, explicit: Names, count: int, batched: int) -> None:
    operands = explicit[batched:]
    if batched and explicit[0] is not None:
        raise Unsupported("sequence_lens is given; expected sequences of the same length")
    if not 1 <= count <= len(operands) or None in operands:
        raise Unsupported(f"num_scan_inputs is {count} of {len(operands)}")
    scanned = operands[len(operands) - count :]
    if any(len(graph.shape(n)) < 1 + batched for n in all_required(scanned)):
        raise Unsupported("a scanned input has no axis to scan")


def _list(node: Operator, name: str, count: int) -> list[int]:
    numbers = [int(v) for v in node.attribute(name) or [0] * count]
    if len(numbers) < count:
        raise Unsupported(f"{name} has {len(numbers)} entries, expected {count}")
    return numbers[:count]


def _scan(b: Builder, proto: onnx.NodeProto, parts: _Scan, outside: Mapping[str, str]) -> None:
    graph, first = b.graph, len(parts.states)
    axes = [a % len(graph.shape(n)) for a, n in zip(parts.axes, parts.scanned)]
    extents = {graph.shape(name)[axis] for name, axis in zip(parts.scanned, axes)}
    if len(extents) != 1:
        raise Unsupported(f"scanned axes have extents {sorted(map(str, extents))}; expected the same of all")
    (steps,) = extents
    builder = LoopBuilder(graph, "scan")
    t = builder.counter
    if isinstance(steps, int):
        builder.graph.source.trips[str(t)] = steps
    carried = [builder.carry(n) for n in parts.states]
    slices = [
        builder.slice_of(n, axis, steps - 1 - t if back else t)
        for n, axis, back in zip(parts.scanned, axes, parts.backward)
    ]
    results = _Scope(builder, outside).run(proto, [*carried, *slices])
    _next(builder, carried, results[:first])
    finals = _finals(graph, parts.states, parts.outputs[:first])
    places = zip(results[first:], parts.outputs[first:], parts.out_axes, parts.out_backward)
    stacked = [_stack(builder, r, out, axis, steps, bool(back)) for r, out, axis, back in places if out is not None]
    builder.finish(results[:first], finals, stacked, trips=steps)


def _scan_batch(b: Builder, proto: onnx.NodeProto, parts: _Scan, outside: Mapping[str, str]) -> None:
    """A loop over the first axis of everything around the scan of the second axis."""
    builder = LoopBuilder(b.graph, "batch")
    count = b.graph.shape(parts.scanned[0])[0]
    if any(b.graph.shape(n)[:1] != (count,) for n in (*parts.states, *parts.scanned)):
        raise Unsupported("the operands of Scan have batches of different sizes")
    own = {name: builder.capture(n) for name, n in outside.items()}
    opened = [None if out is None else _Open() for out in parts.outputs]
    inner = replace(
        parts,
        states=[builder.slice_of(n, 0, builder.counter) for n in parts.states],
        scanned=[builder.slice_of(n, 0, builder.counter) for n in parts.scanned],
        outputs=opened,
    )
    _scan(builder.b, proto, inner, own)
    results = [(part.name, out) for part, out in zip(opened, parts.outputs) if part is not None and out is not None]
    stacked = [_stack(builder, str(name), out, 0, count, False) for name, out in results]
    builder.finish([], [], stacked, trips=count)


# -------------------------------------------------------------------- what is refused


@supports("If", "Loop", "Scan")
def why_not(graph: Graph, node: Operator) -> str | None:
    """The reason why a graph inside cannot be imported, found by importing it into a copy of the operands.

    It may go away once a condition, a trip count or a small operand of the graph is known.
    """
    inputs = graph.inputs_of(node)
    trial, operands, results = onnx_nodes.trial(graph, inputs, graph.outputs_of(node))
    try:
        _RULES[node.op_type](Builder(trial, "trial"), node, operands, results)
    except Unsupported as error:
        undecided = [k for k, n in enumerate(inputs) if n is not None and _decides(graph, n)]
        return values.UnknownValue.at(str(error), *undecided) if undecided else str(error)
    return None


@onnx_nodes.expands_regions
def expand(
    b: Builder, proto: onnx.NodeProto, inputs: Names, attributes: dict[str, Any], outputs: Sequence[str | None]
) -> list[str | None]:
    """Lower an ONNX node with graphs to a region of ``b.graph`` at once; those captured are inputs, too.

    ``outputs``: arrays for its results, None where there is none yet; returns them all, None for those left out.
    Raises Unsupported, with the graph half done, for what cannot be lowered.
    """
    results = [n or (_Open() if name else None) for n, name in zip(outputs, proto.output, strict=True)]
    _expand(b, proto, inputs, attributes, results)
    return [o.name if isinstance(o, _Open) else o for o in results]


def _expand(b: Builder, proto: onnx.NodeProto, inputs: Names, attributes: dict[str, Any], outputs: Results) -> None:
    if proto.op_type not in _RULES or proto.domain not in ("", "ai.onnx"):
        raise Unsupported(f"{proto.domain or 'onnx'}.{proto.op_type} has no native lowering")
    node = make(proto.op_type, "", len(inputs), len(outputs), attributes, b.graph.source.opset.get(""))
    _RULES[proto.op_type](b, node, inputs, outputs)


def result_shapes(
    graph: Graph, proto: onnx.NodeProto, inputs: Sequence[str | None], attributes: dict[str, Any]
) -> list[Shape | None]:
    """Shapes of the outputs of an ONNX node with graphs over arrays of ``graph``; None where they are not known."""
    trial, operands, _ = onnx_nodes.trial(graph, inputs, [])
    results = [_Open() if name else None for name in proto.output]
    try:
        _expand(Builder(trial, "trial"), proto, operands, attributes, results)
    except Unsupported as error:  # what is known so far lets the node be judged, which gives the reason
        logger.debug("the results of %s have no known shapes: %s", proto.op_type, error)
    return [None if o is None or o.name is None else trial.shape(o.name) for o in results]


def _decides(graph: Graph, name: str) -> bool:
    """Is this a small operand whose value is not known, and might be a shape, a count or a condition?"""
    small = isinstance(graph.size(name), int) and graph.size(name) <= 64 and not types.is_float(graph.dtype(name))
    return small and values.known_elements(graph, name) is None


def _single(b: Builder, name: str) -> str:
    """An array of one element as one of rank 0."""
    return b.reshape(name, ()) if b.graph.shape(name) else name


def _check_single(graph: Graph, names: Names, label: str) -> None:
    if any(n is not None and graph.size(n) != 1 for n in names):
        raise Unsupported(f"{label} has more than one element")


_RULES: dict[str, Callable[..., None]] = {"If": if_, "Loop": loop, "Scan": scan}
