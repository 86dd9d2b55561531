"""Resize and Upsample: one axis after the other, each output a weighted sum of a few elements (taps) of that axis.

Indices and weights are constants where the extents are numbers; over symbolic extents a small kernel computes them.
The gradient sums, for each input, over the outputs that it went to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dace
import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import NUMBERS, Names, Operator, gradient, lowering, supports
from daceopt.ops.families.elementwise import alias
from daceopt.ops.families.interpolation import COORDINATES, EXPRESSIONS, ROUNDINGS, Axis, repeats, table
from daceopt.ops.families.taps import Taps, constant_taps, weigh

_INT64 = types.from_name("int64")


# -------------------------------------------------------------------- what the node says


@dataclass(frozen=True)
class ResizeOperands:
    """Positions of the operands; they differ between versions."""

    roi: int | None
    scales: int
    sizes: int | None


def _operands(node: Operator) -> ResizeOperands:
    old = node.op_type == "Upsample" or node.since_version == 10
    return ResizeOperands(None, 1, None) if old else ResizeOperands(1, 2, 3)


def _floats(graph: Graph, node: Operator, inputs: Names, position: int | None, attribute: str = "") -> list[float]:
    own = node.attribute(attribute) if attribute else None
    if own is not None or position is None:
        return [float(v) for v in own or ()]
    array = values.constant(graph, values.at(inputs, position))
    return [] if array is None else [float(v) for v in array.reshape(-1)]


def _axes(graph: Graph, node: Operator, inputs: Names) -> list[int]:
    rank = len(graph.shape(require(inputs, 0)))
    return [a % rank for a in node.attribute("axes") or range(rank)]


def _resized_axes(
    graph: Graph, node: Operator, inputs: Names, shape: Sequence[Dim], result: Sequence[Dim]
) -> dict[int, Axis]:
    """The axes that change, from the extents before and after; nothing to do where the scale is 1."""
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(node.attribute("mode"), node.attribute("mode", "nearest"))
    old = _operands(node).sizes is None
    coordinates = "asymmetric" if old else node.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = "simple" if old else node.attribute("nearest_mode", "round_prefer_floor")
    axes = _axes(graph, node, inputs)
    scales = _scales(graph, node, inputs, axes, shape, result)
    roi = _floats(graph, node, inputs, _operands(node).roi) if coordinates == "tf_crop_and_resize" else []
    resized = {}
    for k, a in enumerate(axes):
        part = (roi[k], roi[k + len(axes)]) if roi else (0.0, 1.0)
        if scales[k] == 1 and dim(shape[a]) == dim(result[a]) and part == (0.0, 1.0):
            continue
        resized[a] = Axis(
            shape[a], result[a], scales[k], mode, coordinates, rounding, part,
            node.attribute("cubic_coeff_a", -0.75), bool(node.attribute("antialias", 0)),
            bool(node.attribute("exclude_outside", 0)),
        )  # fmt: skip
    return resized


def _scales(
    graph: Graph, node: Operator, inputs: Names, axes: list[int], shape: Sequence[Dim], result: Sequence[Dim]
) -> list[Any]:
    """The factor of each axis in ``axes``, given or from the sizes."""
    scales = _floats(graph, node, inputs, _operands(node).scales, "scales")
    if scales:
        return scales
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [_ratio(result[a], shape[a]) for a in axes]
    sizes = values.known_elements(graph, values.at(inputs, 3)) or ()
    ratios = [float(s / shape[a]) for s, a in zip(sizes, axes)]
    return [(min if policy == "not_larger" else max)(ratios)] * len(axes)


def _ratio(result: Dim, extent: Dim) -> Any:
    if result == extent:
        return 1.0
    if isinstance(result, int) and isinstance(extent, int):
        return result / extent if extent else 1.0
    quotient = sympy.sympify(result) / extent
    if quotient.is_number:
        return float(quotient)
    return scalar.cast(result, dace.float64) / scalar.cast(extent, dace.float64)


@supports("Resize", "Upsample")
def why_not_resize(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    operands = _operands(node)
    reason = (
        _why_not_mode(node) or _why_not_factors(graph, node, inputs, operands) or _why_not_counts(graph, node, inputs)
    )
    if reason is not None:
        return reason
    x, out = require(inputs, 0), graph.result(node, 0)
    shape, result = graph.shape(x), graph.shape(out)
    if any(n == 0 and m != 0 for n, m in zip(shape, result)):
        return f"{shape} cannot be resized to {result}: there is nothing to take values from"
    axes = _resized_axes(graph, node, inputs, shape, result).values()
    if any(a.antialias and not isinstance(a.scale, (int, float)) for a in axes):
        return "antialias with a factor that depends on a symbolic size"
    return None


def _why_not_mode(node: Operator) -> str | None:
    mode, rounding = node.attribute("mode", "nearest"), node.attribute("nearest_mode", "floor")
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    if mode not in ("nearest", "linear", "cubic", "bilinear", "trilinear"):
        return f"mode {mode!r}; expected nearest, linear or cubic"
    if coordinates not in COORDINATES:
        return f"coordinate_transformation_mode {coordinates!r}; expected {', '.join(COORDINATES)}"
    if rounding not in ROUNDINGS:
        return f"nearest_mode {rounding!r}; expected {', '.join(ROUNDINGS)}"
    return "antialias with mode nearest" if mode == "nearest" and node.attribute("antialias", 0) else None


def _why_not_counts(graph: Graph, node: Operator, inputs: Names) -> str | None:
    """Scales, sizes and the region have as many elements as there are axes."""
    operands, rank = _operands(node), len(graph.shape(require(inputs, 0)))
    axes = node.attribute("axes") or range(rank)
    if not all(-rank <= a < rank for a in axes):
        return f"axes {list(axes)} of an input of rank {rank}"
    crops = node.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    factors = [(operands.scales, 1), (operands.sizes, 1), (operands.roi if crops else None, 2)]
    for name, each in ((values.at(inputs, k), each) for k, each in factors if k is not None):
        if name is not None and graph.size(name) not in (0, each * len(axes)):
            return f"{graph.size(name)} elements in {name!r}; expected {each * len(axes)}"
    return None


def _why_not_factors(graph: Graph, node: Operator, inputs: Names, operands: ResizeOperands) -> str | None:
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    scales = values.at(inputs, operands.scales) if node.attribute("scales") is None else None
    roi = values.at(inputs, operands.roi) if operands.roi is not None and coordinates == "tf_crop_and_resize" else None
    for name, position, label in ((scales, operands.scales, "scales"), (roi, operands.roi, "roi")):
        if name is not None and graph.size(name) != 0 and values.constant(graph, name) is None:
            reason = f"input {label} of {node.op_type} is computed at run time; expected a constant"
            return values.UnknownValue.at(reason, position or 0)
    if any(s <= 0 for s in _floats(graph, node, inputs, operands.scales, "scales")):
        return "scales of 0 or less"
    sizes = values.at(inputs, operands.sizes) if operands.sizes is not None else None
    if sizes is not None and values.known_elements(graph, sizes) is None:
        return values.UnknownValue.at("input sizes of Resize is computed at run time; expected a constant", 3)
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        extents = (*(values.known_elements(graph, sizes) or ()), *graph.shape(require(inputs, 0)))
        if any(not isinstance(v, int) for v in extents):
            return "keep_aspect_ratio_policy over symbolic sizes"
    return None


# -------------------------------------------------------------------- lowering


@lowering("Resize", "Upsample", types=NUMBERS)
def resize(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out = require(inputs, 0), require(outputs, 0)
    dtype, result = b.graph.dtype(x), b.graph.shape(out)
    axes = _resized_axes(b.graph, node, inputs, b.graph.shape(x), result)
    if not axes or 0 in result:
        alias(b, x, out) if not axes else b.full(result, 0, dtype, out=out)
        return
    if all(a.mode == "nearest" for a in axes.values()):
        y = _nearest(b, x, axes, None if _masks(axes) else out)
    else:
        wide = (
            dtype if types.is_float(dtype) else types.from_name("float32" if types.itemsize(dtype) < 4 else "float64")
        )
        y = x if wide == dtype else b.cast(x, wide)
        for place, (a, axis) in enumerate(sorted(axes.items(), key=lambda item: _growth(item[1]))):
            last = place == len(axes) - 1 and wide == dtype and not _masks(axes)
            y = weigh(b, y, a, _graph_table(b, axis, wide), out if last else None)
    if y != out:
        _finish(b, y, out, axes, node.attribute("extrapolation_value", 0.0))


def _growth(axis: Axis) -> float:
    """Axes that shrink go first."""
    return float(axis.scale) if isinstance(axis.scale, (int, float)) else 1.0


def _masks(axes: dict[int, Axis]) -> bool:
    return any(a.coordinates == "tf_crop_and_resize" for a in axes.values())


def _finish(b: Builder, y: str, out: str, axes: dict[int, Axis], extrapolation: float) -> None:
    """Positions outside get the extrapolation value. Integers saturate; as in ONNX Runtime, they are rounded towards
    zero, or to the nearest with antialias."""
    dtype = b.graph.dtype(out)
    masks = _mask_arrays(b, axes, len(b.graph.shape(out)))
    limits = None if types.is_float(dtype) else np.iinfo(types.to_numpy(dtype))
    from_float = types.is_float(b.graph.dtype(y))

    def element(value: sympy.Expr, *outside: sympy.Expr) -> sympy.Expr:
        for mask in outside:
            value = scalar.select(mask, sympy.Float(extrapolation, 17) if from_float else int(extrapolation), value)
        if limits is None or not from_float:
            return value
        value = scalar.round_even(value) if any(a.antialias for a in axes.values()) else value
        if limits.bits < 64:
            value = scalar.minimum(scalar.maximum(value, int(limits.min)), int(limits.max))
        return scalar.cast(value, dtype)

    b.elementwise(element, y, *masks, out=out, label="resize")


def _mask_arrays(b: Builder, axes: dict[int, Axis], rank: int) -> list[str]:
    """For each axis with positions outside, their mask in a shape that broadcasts."""
    masks = []
    for a, axis in axes.items():
        if axis.coordinates != "tf_crop_and_resize":
            continue
        shape = [axis.result if k == a else 1 for k in range(rank)]
        if axis.is_constant:
            outside = table(axis).outside
            masks += [] if outside is None else [b.reshape(b.constant(outside), shape)]
            continue
        mask = b.graph.add_array("outside", [axis.result], types.from_name("bool"))
        b.map(
            [axis.result],
            {},
            {"out": (mask, lambda *i: i)},
            lambda i, axis=axis: axis.outside(EXPRESSIONS, _real(i[0])),
        )
        masks.append(b.reshape(mask, shape))
    return masks


def _real(i: sympy.Expr) -> sympy.Expr:
    return scalar.cast(i, dace.float64)


def _graph_table(b: Builder, axis: Axis, dtype: DType) -> Taps:
    if axis.is_constant:
        return constant_taps(b, table(axis), dtype)
    shape = (axis.result, axis.width)
    index = b.graph.add_array("taps", shape, _INT64)
    at = {"out": (index, lambda *i: i)}
    b.map(shape, {}, at, lambda i: axis.tap(EXPRESSIONS, _real(i[0]), i[1])[0], label="taps")
    if axis.mode == "nearest":
        return Taps(index, None, 1)
    weight = b.graph.add_array("weights", shape, dtype)
    at = {"out": (weight, lambda *i: i)}
    b.map(shape, {}, at, lambda i: axis.tap(EXPRESSIONS, _real(i[0]), i[1])[1], label="weights")
    return Taps(index, weight, axis.width)


def _nearest(b: Builder, x: str, axes: dict[int, Axis], out: str | None) -> str:
    """All axes at once: out[i...] = x[index[i]...]."""
    shape = list(b.graph.shape(x))
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (x, lambda *i: (None,) * len(shape))}
    places: dict[int, Any] = {}
    for a, axis in axes.items():
        count = repeats(axis)
        shape[a] = axis.result
        if count is not None:
            places[a] = lambda i, operands, a=a, count=count: scalar.idiv(i[a], count)
            continue
        taps = _graph_table(b, axis, None)
        reads[f"t{a}"] = (taps.index, lambda *i, a=a: (i[a], 0))
        places[a] = lambda i, operands, a=a: operands[f"t{a}"]
    y = out or b.graph.add_array("resize", shape, b.graph.dtype(x))

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, **operands: sympy.Expr) -> sympy.Expr:
        return scalar.load(x, *(places[k](i, operands) if k in places else p for k, p in enumerate(i)))

    b.map(shape, reads, {"out": (y, lambda *i: i)}, element, label="resize")
    return y


# -------------------------------------------------------------------- gradient


@gradient("Resize", "Upsample")
def resize_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Each axis by the transpose of its taps."""
    result: Names = [None] * len(inputs)
    dy = grads_out[0]
    if dy is None or not needs_grad[0]:
        return result
    shape = b.graph.shape(require(inputs, 0))
    axes = _resized_axes(b.graph, node, inputs, shape, b.graph.shape(dy))
    masks = _mask_arrays(b, axes, len(shape))
    if masks:
        dy = b.elementwise(lambda g, *outside: _zero(g, outside), dy, *masks)
    for a, axis in sorted(axes.items(), key=lambda item: _growth(item[1]), reverse=True):
        dy = _spread_back(b, dy, a, axis)
    result[0] = dy
    return result


def _zero(value: sympy.Expr, masks: tuple[sympy.Expr, ...]) -> sympy.Expr:
    for mask in masks:
        value = scalar.select(mask, 0, value)
    return value


def _spread_back(b: Builder, dy: str, a: int, axis: Axis) -> str:
    """The gradient before axis ``a`` was resized."""
    dtype, shape = b.graph.dtype(dy), b.graph.shape(dy)
    count = repeats(axis)
    if count is not None:
        blocks = b.reshape(dy, (*shape[:a], axis.extent, count, *shape[a + 1 :]))
        return b.reduce("sum", None, blocks, axes=(a + 1,), label="resize_grad")
    if axis.is_constant:
        return weigh(b, dy, a, constant_taps(b, table(axis).transpose(axis.extent), dtype))
    return _scatter(b, dy, a, axis, _graph_table(b, axis, dtype))


def _scatter(b: Builder, dy: str, a: int, axis: Axis, taps: Taps) -> str:
    """Over symbolic extents: rows of dy, times their weights, are added to the rows that they came from."""
    order = [a, *(k for k in range(len(b.graph.shape(dy))) if k != a)]
    rows = b.transpose(dy, order)
    rest = b.graph.shape(rows)[1:]
    weighted = b.graph.add_array("rows", (axis.result, taps.width, *rest), b.graph.dtype(dy))
    reads = {"g": (rows, lambda *i: (i[0], *i[2:]))}
    if taps.weight is not None:
        reads["w"] = (taps.weight, lambda *i: i[:2])
    b.map(b.graph.shape(weighted), reads, {"out": (weighted, lambda *i: i)}, lambda i, g, w=1: w * g, label="rows")
    out = b.graph.add_array("resize_grad", (axis.extent, *rest), b.graph.dtype(dy))
    b.library(IndexAdd, {"Index": taps.index, "dY": weighted}, {"dW": out})
    return b.transpose(out, [order.index(k) for k in range(len(order))])
