"""Shapes of results that ONNX's inference leaves open, because sizes are symbols or operands are computed from shapes.

Operators whose operands name extents have a rule over :func:`values.known`; all others are given to ONNX's inference
once more, alone, with the shapes and the integers that are known by now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import onnx
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.graph.operator import Operator, make
from daceopt.ir.nodes.builder import broadcast_shapes
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.extents import parse
from daceopt.ops.core import values
from daceopt.ops.core.assumptions import assume, holds

_FAR = 2**31 - 1  # what exporters write for "to the end" is this or more
_MAX_DENOMINATOR = 2**16

Rule = Callable[[Graph, Operator, "list[str | None]"], "Shape | None"]


def result_shapes(
    graph: Graph,
    op_type: str,
    inputs: Sequence[str | None],
    outputs: int,
    attributes: dict[str, Any],
    domain: str = "",
) -> list[Shape | None]:
    """The shapes of the outputs of an operator over arrays of ``graph``; None where they are not known."""
    node = make(op_type, domain, len(inputs), outputs, attributes, graph.source.opset.get(domain))
    rule = _RULES.get(op_type) if not node.domain else None
    try:
        shape = rule(graph, node, list(inputs)) if rule is not None else None
    except (ValueError, IndexError, TypeError, ZeroDivisionError):
        shape = None
    if shape is not None and outputs == 1:
        return [tuple(dim(e) for e in shape)]
    return _by_onnx(graph, node, inputs, outputs)


def _known_shape(graph: Graph, inputs: list[str | None], position: int) -> tuple[Dim, ...]:
    """Raises ValueError where the operand is absent or not known."""
    elements = values.known_elements(graph, values.at(inputs, position))
    if elements is None:
        raise ValueError(f"operand {position} is not known")
    return elements


def _shape(graph: Graph, inputs: list[str | None]) -> Shape:
    return graph.shape(require(inputs, 0))


# -------------------------------------------------------------------- rules


def _reshape(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape | None:
    shape, target = _shape(graph, inputs), list(_known_shape(graph, inputs, 1))
    if not node.attribute("allowzero", 0):
        target = [shape[k] if e == 0 else e for k, e in enumerate(target)]
    if -1 not in target:
        return tuple(target)
    rest = sympy.sympify(prod(e for e in target if e != -1))
    free = sympy.cancel(sympy.sympify(prod(shape)) / rest) if rest != 0 else sympy.S.Zero
    if not sympy.denom(free).is_Integer:
        return None
    return tuple(free if e == -1 else e for e in target)


def _slice(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    shape = list(_shape(graph, inputs))
    starts, ends = _known_shape(graph, inputs, 1), _known_shape(graph, inputs, 2)
    axes = values.known_elements(graph, values.at(inputs, 3)) or range(len(starts))
    steps = values.known_elements(graph, values.at(inputs, 4)) or [1] * len(starts)
    for a, start, end, step in zip(axes, starts, ends, steps):
        if not isinstance(a, int) or not isinstance(step, int):
            raise ValueError("axes and steps are not numbers")
        shape[a] = _count(graph, start, end, step, shape[a])
    return tuple(shape)


def _count(graph: Graph, start: Dim, end: Dim, step: int, extent: Dim) -> Dim:
    if all(isinstance(v, int) for v in (start, end, extent)):
        if step < 0 and start < -extent:
            start = 0  # unlike NumPy, which then takes nothing
        return len(range(extent)[start:end:step])
    if step < 0:
        if (start == -1 or start >= _FAR) is not True or (isinstance(end, int) and end <= -_FAR) is not True:
            raise ValueError("only whole axes of symbolic extent are reversed")
        return _ceiling(extent, -step)
    last = position(graph, end, extent)
    # an end that is a number may be there to cut what is longer
    guessed = (not isinstance(end, int) or end <= 1) and _is_assumed(graph, extent - last)
    inside = guessed or holds(graph, extent - last)
    count = sympy.sympify(last if inside else sympy.Min(last, extent)) - position(graph, start, extent)
    return _ceiling(count if _is_assumed(graph, count) else sympy.Max(count, 0), step)


def _is_assumed(graph: Graph, extent: Dim) -> bool:
    return holds(graph, extent) or (graph.source.speculative and assume(graph, extent))


def position(graph: Graph, place: Dim, extent: Dim, bold: bool = False) -> Dim:
    """A bound of a slice, counted from the start, maybe behind the end. Raises ValueError where its sign is open.

    ``bold``: an expression is taken to be in the axis, and the graph is for sizes where it is.
    """
    if isinstance(place, int) and place >= _FAR:
        return extent
    if not holds(graph, place):
        if not holds(graph, -place):
            raise ValueError(f"{place} may count from either end")
        if isinstance(place, int):
            return extent + place if holds(graph, extent + place) else sympy.Max(extent + place, 0)
        bold = bold or graph.source.speculative
        if not holds(graph, -place - 1) and not (bold and assume(graph, -place - 1)):
            raise ValueError(f"{place} may be 0, which counts from the start")
        inside = holds(graph, extent + place) or (bold and assume(graph, extent + place))
        return extent + place if inside else sympy.Max(extent + place, 0)
    return place


def _ceiling(count: Dim, step: int) -> Dim:
    return count if step == 1 else -sympy.floor(-sympy.sympify(count) / step)


def _range(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    (start,), (limit,), (delta,) = (_known_shape(graph, inputs, k) for k in range(3))
    whole = all(types.is_integer(graph.dtype(n)) for n in all_required(inputs))
    if not whole or not isinstance(delta, int) or delta == 0:
        raise ValueError("a range over numbers that are not integers")
    span = (limit - start) * (1 if delta > 0 else -1)
    count = _ceiling(span, abs(delta))
    return (count if holds(graph, span) else sympy.Max(count, 0),)


def _pad(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    shape, pads = list(_shape(graph, inputs)), values.integers(graph, node, inputs, "pads", 1)
    axes = values.integers(graph, node, inputs, "axes", 3) or list(range(len(shape)))
    if pads is None:
        raise ValueError("pads are not known")
    for k, a in enumerate(axes):
        shape[a] = dim(shape[a] + pads[k] + pads[k + len(axes)])
    return tuple(shape)


def _tile(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    return tuple(n * r for n, r in zip(_shape(graph, inputs), _known_shape(graph, inputs, 1), strict=True))


def _concat(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    shape, axis = list(_shape(graph, inputs)), node.attribute("axis", 1)
    shape[axis] = dim(sum(graph.shape(n)[axis] for n in all_required(inputs)))
    return tuple(shape)


def _flatten(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    shape, axis = _shape(graph, inputs), node.attribute("axis", 1)
    return prod(shape[:axis]), prod(shape[axis:])


def _resize(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape | None:
    shape = list(_shape(graph, inputs))
    axes = node.attribute("axes") or range(len(shape))
    sizes = values.known_elements(graph, values.at(inputs, 3))
    if sizes:
        if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            return None
        factors = [None] * len(sizes)
    else:
        at = 1 if node.op_type == "Upsample" or node.since_version == 10 else 2
        scales = values.constant(graph, values.at(inputs, at))
        factors = scales.tolist() if scales is not None else node.attribute("scales")
        sizes = (0,) * len(factors)
    for a, size, factor in zip(axes, sizes, factors, strict=True):
        shape[a] = size if factor is None else _scale(shape[a], factor)
    return tuple(shape)


def _scale(extent: Dim, factor: float) -> Dim:
    exact = Fraction(factor)
    if isinstance(extent, int):
        return int(extent * factor)
    if exact.denominator > _MAX_DENOMINATOR:
        raise ValueError(f"{extent} times {factor} is not exact")
    return sympy.floor(extent * sympy.Rational(exact.numerator, exact.denominator))


def _crop(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    shape, target = list(_shape(graph, inputs)), _known_shape(graph, inputs, 1)
    for a, size in zip(node.attribute("axes") or range(len(shape)), target, strict=True):
        shape[a] = size
    return tuple(shape)


def _broadcast(graph: Graph, node: Operator, inputs: list[str | None]) -> Shape:
    return broadcast_shapes(*map(graph.shape, all_required(inputs)))


_POINTWISE = """Add Sub Mul Div Pow Mod Where Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor Max Min Sum Mean
BitwiseAnd BitwiseOr BitwiseXor BitShift"""
_BROADCASTING = frozenset(_POINTWISE.split())


def unfit(graph: Graph, node: Operator) -> str | None:
    """Why the operands of a pointwise operator have no common shape; None where they have one."""
    if node.domain or node.op_type not in _BROADCASTING:
        return None
    try:
        broadcast_shapes(*(graph.shape(n) for n in graph.inputs_of(node) if n is not None))
    except ValueError as error:
        return str(error)
    return None


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_BROADCASTING, _broadcast),
    "Reshape": _reshape,
    "Expand": lambda graph, node, inputs: broadcast_shapes(_shape(graph, inputs), _known_shape(graph, inputs, 1)),
    "ConstantOfShape": lambda graph, node, inputs: _known_shape(graph, inputs, 0),
    "Slice": _slice,
    "Range": _range,
    "Pad": _pad,
    "Tile": _tile,
    "Concat": _concat,
    "Flatten": _flatten,
    "Resize": _resize,
    "Upsample": _resize,
    "CenterCropPad": _crop,
    "MaxUnpool": lambda graph, node, inputs: _known_shape(graph, inputs, 2),
}


# -------------------------------------------------------------------- ONNX's own inference


def _by_onnx(graph: Graph, node: Operator, inputs: Sequence[str | None], outputs: int) -> list[Shape | None]:
    from onnx import helper, numpy_helper, shape_inference

    names_in = ["" if n is None else f"i{k}" for k, n in enumerate(inputs)]
    names_out = [f"o{k}" for k in range(outputs)]
    attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in node.attributes.items()}
    proto = helper.make_node(node.op_type, names_in, names_out, domain=node.domain, **attributes)
    symbols = {
        str(s): s for n in inputs if n is not None for e in graph.shape(n) for s in sympy.sympify(e).free_symbols
    }
    symbols |= {str(e): e for n in inputs if n is not None for e in graph.shape(n) if not isinstance(e, int)}
    operands, constants = [], []
    for label, name in zip(names_in, inputs):
        if name is None:
            continue
        shape = [e if isinstance(e, int) else str(e) for e in graph.shape(name)]
        operands.append(helper.make_tensor_value_info(label, types.to_onnx(graph.dtype(name)), shape))
        value = values.constant(graph, name) if types.is_integer(graph.dtype(name)) else None
        constants += [] if value is None else [numpy_helper.from_array(value, label)]
    results = [helper.make_empty_tensor_value_info(n) for n in names_out]
    version = [helper.make_opsetid(node.domain, max(node.since_version, graph.source.opset.get(node.domain, 1)))]
    model = helper.make_model(helper.make_graph([proto], "one", operands, results, constants), opset_imports=version)
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # InferenceError, or whatever the C++ side meets
        return [None] * outputs
    return [_extents(v.type.tensor_type, symbols) for v in inferred.graph.output]


def _extents(tensor: onnx.TypeProto.Tensor, symbols: dict[str, sympy.Symbol]) -> Shape | None:
    """The shape, if all of it is a function of ``symbols``."""
    if not tensor.HasField("shape"):
        return None
    try:
        return tuple(_extent(d, symbols) for d in tensor.shape.dim)
    except KeyError:
        return None


def _extent(proto: onnx.TensorShapeProto.Dimension, symbols: dict[str, sympy.Symbol]) -> Dim:
    if proto.HasField("dim_value"):
        return int(proto.dim_value)
    return parse(proto.dim_param, symbols.__getitem__)
