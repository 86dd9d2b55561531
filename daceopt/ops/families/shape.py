"""Operators that only rearrange: views wherever strides allow. Target shapes come from the declared outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

from daceopt.errors import NotKnownYet
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder, broadcast_shapes
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ops.core import inference, values
from daceopt.ops.core.assumptions import assume
from daceopt.ops.core.registry import (
    ANY,
    COMPUTED,
    NUMBERS,
    Names,
    Operator,
    constant_value,
    lowering,
    supports,
    without_gradient,
)


@lowering("Reshape", "Flatten", "Squeeze", "Unsqueeze", types=ANY)
def reshape(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out = require(inputs, 0), require(outputs, 0)
    b.reshape(x, b.graph.shape(out), out=out)


@supports("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def why_not_reshape(graph: Graph, node: Operator) -> str | None:
    x, out = graph.operand(node, 0), graph.result(node, 0)
    before, after = graph.size(x), graph.size(out)
    if isinstance(before, int) and isinstance(after, int) and before != after:
        return f"{graph.shape(x)} has {before} elements, {graph.shape(out)} has {after}"
    return None


@lowering("Transpose", types=ANY)
def transpose(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x = require(inputs, 0)
    reverse = list(range(len(b.graph.shape(x))))[::-1]
    b.transpose(x, node.attribute("perm") or reverse, out=outputs[0])


@supports("Transpose")
def why_not_transpose(graph: Graph, node: Operator) -> str | None:
    perm, rank = node.attribute("perm"), len(graph.shape(graph.operand(node, 0)))
    return f"perm {list(perm)} is no order of {rank} axes" if perm and sorted(perm) != list(range(rank)) else None


@lowering("Expand", types=ANY)
def expand(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    b.expand(require(inputs, 0), b.graph.shape(require(outputs, 0)), out=outputs[0])


@supports("Expand")
def why_not_expand(graph: Graph, node: Operator) -> str | None:
    shape, target = graph.shape(graph.operand(node, 0)), graph.shape(graph.result(node, 0))
    try:
        fits = broadcast_shapes(shape, target) == target
    except ValueError:
        fits = False
    return None if fits else f"{shape} does not broadcast to {target}"


@lowering("Constant", types=ANY)
def constant(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    name = b.constant(constant_value(node.attributes))
    b.reshape(name, b.graph.shape(require(outputs, 0)), out=outputs[0])


@lowering("ConstantOfShape", types=ANY)
def constant_of_shape(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    value = np.asarray(node.attribute("value", np.zeros(1, np.float32))).reshape(())
    one = b.constant(value)
    b.expand(one, b.graph.shape(require(outputs, 0)), out=outputs[0])


@lowering("DepthToSpace", types=ANY)
def depth_to_space(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Channels become blocks of pixels, in the order depth-column-row (DCR) or column-row-depth (CRD)."""
    x, size = require(inputs, 0), node.attribute("blocksize")
    n, c, h, w = b.graph.shape(x)
    first_is_block = node.attribute("mode", "DCR") == "DCR"
    depth = dim(c // (size * size))
    blocks = b.reshape(x, (n, size, size, depth, h, w) if first_is_block else (n, depth, size, size, h, w))
    pixels = b.transpose(blocks, [0, 3, 4, 1, 5, 2] if first_is_block else [0, 1, 4, 2, 5, 3])
    b.reshape(pixels, b.graph.shape(require(outputs, 0)), out=outputs[0])


@lowering("SpaceToDepth", types=ANY)
def space_to_depth(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The inverse of DepthToSpace."""
    x, size = require(inputs, 0), node.attribute("blocksize")
    n, c, h, w = b.graph.shape(x)
    pixels = b.reshape(x, (n, c, dim(h // size), size, dim(w // size), size))
    first_is_block = node.attribute("mode", "DCR") == "DCR"
    blocks = b.transpose(pixels, [0, 3, 5, 1, 2, 4] if first_is_block else [0, 1, 3, 5, 2, 4])
    b.reshape(blocks, b.graph.shape(require(outputs, 0)), out=outputs[0])


# -------------------------------------------------------------------- numbers about shapes


@lowering("Shape", "Size", types=ANY)
def shape_of(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """A constant, or integers computed from the size symbols."""
    x, out = require(inputs, 0), require(outputs, 0)
    extents: tuple[Dim, ...] = b.graph.shape(x)
    if node.op_type == "Size":
        _write_integers(b, (b.graph.size(x),), out)
    else:
        _write_integers(b, extents[slice(node.attribute("start", 0), node.attribute("end"))], out)


def _write_integers(b: Builder, extents: tuple[Dim, ...], out: str) -> None:
    shape = b.graph.shape(out)
    if all(isinstance(e, int) for e in extents):
        b.reshape(b.constant(np.asarray(extents, np.int64).reshape([int(s) for s in shape])), shape, out=out)
        return
    b.graph.source.shape_values[out] = extents

    def pick(i: tuple[sympy.Symbol, ...]) -> sympy.Expr:
        if not i:
            return extents[0]
        value: Any = extents[-1]
        for k in range(len(extents) - 2, -1, -1):
            value = scalar.select(scalar.eq(i[0], k), extents[k], value)
        return value

    b.map(shape, {}, {"out": (out, lambda *i: i)}, pick, label="shape")


@lowering("Range", types=NUMBERS)
def range_(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """start + delta * i; the length is the declared output's."""
    out = require(outputs, 0)
    dtype = b.graph.dtype(out)
    fixed = {k: _one(b.graph, n) for k, n in (("start", inputs[0]), ("delta", inputs[2]))}
    operands = {"start": require(inputs, 0), "delta": require(inputs, 2)}
    reads = {k: (b.reshape(n, ()), lambda *i: ()) for k, n in operands.items() if fixed[k] is None}

    def element(i: tuple[sympy.Symbol, ...], **operands: sympy.Expr) -> sympy.Expr:
        start, delta = (operands[k] if fixed[k] is None else fixed[k] for k in ("start", "delta"))
        return scalar.cast(start, dtype) + scalar.cast(delta, dtype) * scalar.cast(i[0], dtype)

    b.map(b.graph.shape(out), reads, {"out": (out, lambda *i: i)}, element, label="range")


def _one(graph: Graph, name: str | None) -> Any:
    """The integer that an array of one element holds, if it is known."""
    if name is None or not types.is_integer(graph.dtype(name)):
        return None
    elements = values.known_elements(graph, name)
    return elements[0] if elements else None


# -------------------------------------------------------------------- Slice and Split


def _bounds(graph: Graph, node: Operator, inputs: Names) -> tuple[list[int], list[Dim], list[Dim], list[int]]:
    """(axes, starts, ends, steps), as given."""
    starts = _list(graph, node, inputs, "starts", 1)
    ends = _list(graph, node, inputs, "ends", 2)
    axes = values.integers(graph, node, inputs, "axes", 3)
    steps = values.integers(graph, node, inputs, "steps", 4)
    rank = len(graph.shape(require(inputs, 0)))
    return [a % rank for a in axes or range(len(starts))], starts, ends, steps or [1] * len(starts)


def _list(graph: Graph, node: Operator, inputs: Names, attribute: str, position: int) -> list[Any]:
    own = node.attribute(attribute)
    return list(own) if own is not None else list(values.known_elements(graph, values.at(inputs, position)) or ())


@lowering("Slice", types=ANY)
def slice_(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """A view; steps backward are copied. The number of elements is the declared output's."""
    x, out = require(inputs, 0), require(outputs, 0)
    axes, starts, _, steps = _bounds(b.graph, node, inputs)
    shape, result = b.graph.shape(x), b.graph.shape(out)
    first = [_start(b.graph, s, shape[a], step, result[a]) for s, a, step in zip(starts, axes, steps)]
    _check_inside(b.graph, node, inputs, result, dict(zip(axes, zip(first, steps))))
    if all(step > 0 for step in steps):
        ends = [s + (result[a] - 1) * step + 1 if result[a] != 0 else s for s, a, step in zip(first, axes, steps)]
        b.slice(x, first, ends, steps, axes, out=out)
        return
    origin = dict(zip(axes, zip(first, steps)))

    def index(*i: sympy.Expr) -> sympy.Expr:
        return tuple(origin[k][0] + p * origin[k][1] if k in origin else p for k, p in enumerate(i))

    b.map(result, {"x": (x, index)}, {"out": (out, lambda *i: i)}, lambda i, x: x, label="slice")


def _check_inside(
    graph: Graph, node: Operator, inputs: Names, result: Shape, places: dict[int, tuple[Dim, int]]
) -> None:
    """Nothing outside of the array is read, for sizes that the graph is for; NotKnownYet where that cannot be told.

    ``places``: axis -> first element and step.
    """
    shape = graph.shape(require(inputs, 0))
    clipped = inference.result_shapes(graph, "Slice", inputs, 1, node.attributes)[0]
    for a, (first, step) in places.items():
        if (clipped is not None and clipped[a] == result[a]) or result[a] == 0:
            continue  # so many are there
        last = first + (result[a] - 1) * step
        least, most = (first, last) if step > 0 else (last, first)
        if not (assume(graph, least) and assume(graph, shape[a] - 1 - most)):
            where = f"Slice takes {result[a]} elements from {first} on"
            raise NotKnownYet(f"{where}: they may not be in an axis of {shape[a]}", sizes=True)


def _start(graph: Graph, start: Dim, extent: Dim, step: int, count: Dim) -> Dim:
    """The first element: negative positions count from the end, positions outside are brought to the edge."""
    if count == 0:
        return 0
    if not isinstance(start, int):
        return _symbolic_place(graph, start, extent)
    if not isinstance(extent, int):
        return _symbolic_start(start, extent, step, count)
    start = start + extent if start < 0 else start
    return min(max(start, 0), extent if step > 0 else extent - 1)


def _symbolic_place(graph: Graph, place: Dim, extent: Dim) -> Dim:
    try:
        return inference.position(graph, place, extent, bold=True)
    except ValueError as error:
        raise NotKnownYet(f"Slice starts at {place}: {error}", sizes=True) from error


_FAR = 2**31 - 1


def _symbolic_start(start: Dim, extent: Dim, step: int, count: Dim) -> Dim | None:
    if step < 0 and (start >= _FAR or start == -1):
        return extent - 1
    if start < 0 and count != -start:  # the axis may be shorter
        return sympy.Max(extent + start, 0)
    return extent + start if start < 0 else start


@supports("Slice")
def why_not_slice(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    if values.at(inputs, 1) is not None and values.known_elements(graph, inputs[1]) is None:
        reason = "input starts of Slice is computed at run time; expected a constant or a function of the input's sizes"
        return values.UnknownValue.at(reason, 1)
    if unknown := values.unknown(graph, node, 3, 4):
        return unknown
    rank = len(graph.shape(require(inputs, 0)))
    sliced = values.integers(graph, node, inputs, "axes", 3) or ()
    axes, starts, ends, steps = _bounds(graph, node, inputs)
    if len({a % rank for a in sliced if -rank <= a < rank}) != len(sliced):
        return f"axes {list(sliced)} of an input of rank {rank}: expected each once"
    if values.at(inputs, 2) is not None and values.known_elements(graph, inputs[2]) is None:
        # not needed: the result's extents say how much there is
        count = graph.shape(require(inputs, 2))[0]
        ends = [None] * count if isinstance(count, int) else starts
    if not len(starts) == len(ends) == len(steps) == len(axes) <= rank:
        return f"{len(starts)} starts, {len(ends)} ends and {len(steps)} steps for {len(axes)} axes"
    if any(step < 0 and isinstance(end, int) and end >= _FAR for end, step in zip(ends, steps)):
        return "an end of INT_MAX for a step backward: the standard then takes nothing, ONNX Runtime all before start"
    return "a step of 0" if 0 in steps else None


@lowering("Split", types=ANY)
def split(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """One view for each output, whose declared extent says how long it is."""
    x = require(inputs, 0)
    axis = _split_axis(b.graph, node, inputs)
    sizes = _split_sizes(b.graph, node, inputs, outputs, axis)
    start: Any = 0
    for size, out in zip(sizes, outputs):
        if out is not None:
            b.slice(x, [start], [start + b.graph.shape(out)[axis]], axes=[axis], out=out)
        start = start + size


def _split_axis(graph: Graph, node: Operator, inputs: Names) -> int:
    return int(node.attribute("axis", 0)) % len(graph.shape(require(inputs, 0)))


def _split_sizes(graph: Graph, node: Operator, inputs: Names, outputs: Names, axis: int) -> list[Any]:
    sizes: list[Any] = _list(graph, node, inputs, "split", 1)
    if not sizes and None not in outputs:
        return [graph.shape(out)[axis] for out in all_required(outputs)]
    extent, parts = graph.shape(require(inputs, 0))[axis], node.attribute("num_outputs", len(outputs))
    # the last part may be shorter; nothing starts after it
    return sizes or [-(-extent // parts)] * len(outputs)


@supports("Split")
def why_not_split(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    if values.at(inputs, 1) is not None and values.known_elements(graph, inputs[1]) is None:
        return values.UnknownValue.at("input split of Split is computed at run time; expected a constant", 1)
    sizes = _list(graph, node, inputs, "split", 1)
    extent = graph.shape(require(inputs, 0))[_split_axis(graph, node, inputs)]
    if not sizes or not all(isinstance(n, int) for n in (*sizes, extent)):
        return None
    if len(sizes) != len(graph.outputs_of(node)) or sum(sizes) != extent or min(sizes) < 0:
        return f"parts of {sizes} elements; expected one for each output, {extent} elements together"
    return None


# -------------------------------------------------------------------- diagonals


without_gradient("Range", "EyeLike")


@lowering("EyeLike", types=COMPUTED)
def eye_like(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    offset, out = int(node.attribute("k", 0)), require(outputs, 0)
    b.map(
        b.graph.shape(out),
        {},
        {"out": (out, lambda *i: i)},
        lambda i: scalar.select(scalar.eq(i[1] - i[0], offset), 1, 0),
    )


@lowering("Trilu", types=ANY)
def trilu(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """The upper (or lower) triangle, counted from diagonal k; zero elsewhere."""
    x, out = require(inputs, 0), require(outputs, 0)
    (k,) = values.known_elements(b.graph, values.at(inputs, 1)) or (0,)
    keep = scalar.ge if node.attribute("upper", 1) else scalar.le
    b.map(
        b.graph.shape(out),
        {"x": (x, lambda *i: i)},
        {"out": (out, lambda *i: i)},
        lambda i, x: scalar.select(keep(i[-1] - i[-2], k), x, 0),
        label="trilu",
    )


supports("Trilu")(lambda graph, node: values.unknown(graph, node, 1))
