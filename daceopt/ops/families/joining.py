"""Concat, Pad and Tile: arrays put together from parts of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ops.core import values
from daceopt.ops.core.registry import ANY, Names, Operator, gradient, lowering, present, supports
from daceopt.ops.families.elementwise import alias


@lowering("Concat", types=ANY)
def concat(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Each element looks for its part; positions in the other parts are clamped, so nothing is read outside."""
    out = require(outputs, 0)
    axis = node.attribute("axis", 1) % len(b.graph.shape(out))
    parts = [n for n in present(inputs) if b.graph.shape(n)[axis] != 0] or present(inputs)[:1]
    if len(parts) == 1:
        return alias(b, parts[0], out)
    sizes = [b.graph.shape(n)[axis] for n in parts]
    starts: list[sympy.Expr] = [sympy.Add(*sizes[:k]) for k in range(len(parts))]

    def element(i: tuple[sympy.Symbol, ...], **arrays: sympy.Expr) -> sympy.Expr:
        value: Any = None
        for k, array in reversed(list(enumerate(arrays.values()))):
            inside = scalar.clamp(i[axis] - starts[k], sizes[k])
            own = scalar.load(array, *i[:axis], inside, *i[axis + 1 :])
            value = own if value is None else scalar.select(scalar.lt(i[axis], starts[k] + sizes[k]), own, value)
        return value

    whole = (None,) * len(b.graph.shape(out))
    reads = {f"x{k}": (name, lambda *i: whole) for k, name in enumerate(parts)}
    b.map(b.graph.shape(out), reads, {"out": (out, lambda *i: i)}, element, label="concat")
    return None


@gradient("Concat")
def concat_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Views of the parts of dy."""
    dy, result = grads_out[0], [None] * len(inputs)
    if dy is None:
        return list(result)
    axis = node.attribute("axis", 1) % len(b.graph.shape(dy))
    grads: Names = []
    start: Any = 0
    for name, want in zip(all_required(inputs), needs_grad):
        size = b.graph.shape(name)[axis]
        grads.append(b.slice(dy, [start], [start + size], axes=[axis]) if want else None)
        start = start + size
    return grads


# -------------------------------------------------------------------- Pad


def _begins(graph: Graph, node: Operator, inputs: Names) -> dict[int, int]:
    """Axis -> elements added before it (negative: removed)."""
    rank = len(graph.shape(require(inputs, 0)))
    pads = values.integers(graph, node, inputs, "pads", 1) or [0] * (2 * rank)
    axes = values.integers(graph, node, inputs, "axes", 3) or list(range(rank))
    return {a % rank: pads[k] for k, a in enumerate(axes)}


_COORDINATE = {
    "edge": lambda i, n: scalar.minimum(scalar.maximum(i, 0), n - 1),
    "wrap": lambda i, n: scalar.pymod(i, n),
    "reflect": lambda i, n: _reflect(i, n),
}


def _reflect(i: sympy.Expr, n: Dim) -> sympy.Expr:
    """The mirror image at the first and last element, which are not repeated."""
    period = 2 * (n - 1)
    if n == 1:
        return sympy.Integer(0)
    step = scalar.pymod(i, period)
    return scalar.minimum(step, period - step)


@lowering("Pad", types=ANY)
def pad(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out = require(inputs, 0), require(outputs, 0)
    begins, mode = _begins(b.graph, node, inputs), node.attribute("mode", "constant")
    shape = b.graph.shape(x)
    if mode != "constant":
        _extend(b, x, out, begins, _COORDINATE[mode])
        return
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (x, lambda *i: (None,) * len(shape))}
    if 0 in shape:
        _fill(b, node, inputs, out)
        return
    reads["value"] = (_value(b, node, inputs), lambda *i: ())

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, value: sympy.Expr) -> sympy.Expr:
        place, inside = [], []
        for d, p in enumerate(i):
            q = p - begins.get(d, 0)
            same = begins.get(d, 0) == 0 and shape[d] == b.graph.shape(out)[d]
            place.append(q if same else scalar.clamp(q, shape[d]))
            inside += [] if same else [scalar.logical_and(scalar.ge(q, 0), scalar.lt(q, shape[d]))]
        inside_value = scalar.load(x, *place)
        for condition in inside:
            inside_value = scalar.select(condition, inside_value, value)
        return inside_value

    b.map(b.graph.shape(out), reads, {"out": (out, lambda *i: i)}, element, label="pad")


def _extend(
    b: Builder, x: str, out: str, begins: dict[int, int], coordinate: Callable[[sympy.Expr, Dim], sympy.Expr]
) -> None:
    """Padding with elements of x itself, after it was cropped where the padding is negative."""
    shape, result = b.graph.shape(x), b.graph.shape(out)
    starts = [max(-begins.get(d, 0), 0) for d in range(len(shape))]
    # what is cropped at the end follows from the extents: result = before + shape + after
    ends = [dim(m - begins.get(d, 0)) if ALL_SIZES.is_positive(n - m + begins.get(d, 0)) else n
            for d, (n, m) in enumerate(zip(shape, result))]  # fmt: skip
    inner = b.slice(x, starts, ends)
    own = b.graph.shape(inner)

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr) -> sympy.Expr:
        places = [p - max(begins.get(d, 0), 0) for d, p in enumerate(i)]
        return scalar.load(x, *(p if own[d] == result[d] else coordinate(p, own[d]) for d, p in enumerate(places)))

    reads = {"x": (inner, lambda *i: (None,) * len(shape))}
    b.map(result, reads, {"out": (out, lambda *i: i)}, element, label="pad")


def _value(b: Builder, node: Operator, inputs: Names) -> str:
    value = values.at(inputs, 2)
    if value is not None:
        return b.reshape(value, ())
    dtype = types.to_numpy(b.graph.dtype(require(inputs, 0)))
    return b.constant(np.asarray(node.attribute("value", 0), dtype))


def _fill(b: Builder, node: Operator, inputs: Names, out: str) -> None:
    b.elementwise(lambda v: v, _value(b, node, inputs), out=out, label="pad")


@supports("Pad")
def why_not_pad(graph: Graph, node: Operator) -> str | None:
    mode = node.attribute("mode", "constant")
    if mode != "constant" and mode not in _COORDINATE:
        return f"mode {mode!r}; expected constant, {', '.join(_COORDINATE)}"
    if reason := values.unknown(graph, node, 1, 3):
        return reason
    shape, result = (graph.shape(str(names[0])) for names in (graph.inputs_of(node), graph.outputs_of(node)))
    if mode != "constant" and any(n == 0 and m != 0 for n, m in zip(shape, result)):
        return f"{shape} padded to {result}: there is nothing to take values from"
    return None


@gradient("Pad", when=lambda node: node.attribute("mode", "constant") == "constant")
def pad_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """The part of dy that x was copied to: a view, or a copy into zeros where the padding was negative."""
    result: Names = [None] * len(inputs)
    dy, value = grads_out[0], values.at(inputs, 2)
    if dy is None:
        return result
    inner = _unpad(b, dy, b.graph.shape(require(inputs, 0)), _begins(b.graph, node, inputs))
    if needs_grad[0]:
        result[0] = inner
    if value is not None and needs_grad[2]:
        result[2] = _value_gradient(b, dy, inner, value)
    return result


def _unpad(b: Builder, dy: str, shape: Shape, begins: dict[int, int]) -> str:
    full = b.graph.shape(dy)
    starts = [begins.get(d, 0) for d in range(len(shape))]
    cropped = [s < 0 or ALL_SIZES.is_positive(shape[d] - full[d] + s) for d, s in enumerate(starts)]
    if not any(cropped):
        return b.slice(dy, starts, [s + n for s, n in zip(starts, shape)])
    out = b.graph.add_array("pad_grad", shape, b.graph.dtype(dy))

    def element(i: tuple[sympy.Symbol, ...], g: sympy.Expr) -> sympy.Expr:
        moved = [p + s for p, s in zip(i, starts)]
        gradient = scalar.load(g, *(scalar.clamp(q, n) for q, n in zip(moved, full)))
        for q, n in zip(moved, full):
            gradient = scalar.select(scalar.logical_and(scalar.ge(q, 0), scalar.lt(q, n)), gradient, 0)
        return gradient

    b.map(shape, {"g": (dy, lambda *i: (None,) * len(shape))}, {"out": (out, lambda *i: i)}, element, label="pad_grad")
    return out


def _value_gradient(b: Builder, dy: str, inner: str, like: str) -> str:
    """The sum over the padding: all of dy but what went to x."""
    total = b.reduce("sum", None, dy, axes=range(len(b.graph.shape(dy))))
    inside = b.reduce("sum", None, inner, axes=range(len(b.graph.shape(inner))))
    return b.reshape(b.elementwise(lambda t, k: t - k, total, inside), b.graph.shape(like))


# -------------------------------------------------------------------- CenterCropPad


@lowering("CenterCropPad", types=ANY)
def center_crop_pad(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Padding with zeros, or cropping, on both sides; where the difference is odd, one more behind."""
    shape, result = b.graph.shape(require(inputs, 0)), b.graph.shape(require(outputs, 0))
    more = [int(sympy.sympify(m) - n) for n, m in zip(shape, result)]
    before = [abs(d) // 2 * (1 if d > 0 else -1) for d in more]
    pads = b.constant(np.array([*before, *(d - k for d, k in zip(more, before))], np.int64))
    b.graph.add_operator("Pad", [inputs[0], pads], [outputs[0]])


@supports("CenterCropPad")
def why_not_center_crop_pad(graph: Graph, node: Operator) -> str | None:
    shape, result = (graph.shape(str(names[0])) for names in (graph.inputs_of(node), graph.outputs_of(node)))
    if any(not sympy.sympify(m - n).is_Integer for n, m in zip(shape, result)):
        return f"{shape} to {result}: expected a difference that does not depend on symbolic sizes"
    return None


# -------------------------------------------------------------------- Tile


@lowering("Tile", types=ANY)
def tile(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """[r0, d0, r1, d1, ...] is a view of x that repeats; its row-major copy is the result."""
    x, out = require(inputs, 0), require(outputs, 0)
    shape, repeats = b.graph.shape(x), values.known_elements(b.graph, values.at(inputs, 1)) or ()
    b.reshape(b.copy(_repeat(b, x, repeats)), b.graph.shape(out), out=out) if shape else alias(b, x, out)


def _repeat(b: Builder, x: str, repeats: Any) -> str:
    shape = b.graph.shape(x)
    spread = b.reshape(x, [e for n in shape for e in (1, n)])
    return b.expand(spread, [e for r, n in zip(repeats, shape) for e in (r, n)])


@supports("Tile")
def why_not_tile(graph: Graph, node: Operator) -> str | None:
    repeats = values.known_elements(graph, values.at(graph.inputs_of(node), 1))
    if repeats is None:
        return values.UnknownValue.at("input repeats of Tile is computed at run time; expected a constant", 1)
    return f"repeats {repeats}; expected 0 or more" if any(isinstance(r, int) and r < 0 for r in repeats) else None
