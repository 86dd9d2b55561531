"""Shape arithmetic at compile time: the value of an array as a NumPy array of numbers and of expressions over sizes.

Numbers are Python's. Where sizes occur, integers are exact expressions; real numbers are fractions, and only those are
followed that floating point holds exactly. An operator over numbers alone that has no rule here is computed by ONNX's
reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import Operator
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.sizes import ALL_SIZES
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import reference

Value: TypeAlias = np.ndarray  # of objects: int, float, bool, or SymPy expressions over size symbols
_MAX_ELEMENTS = 4096
_MAX_DEPTH = 100
_MAX_DENOMINATOR = 2**16
_IMPURE = ("Random", "Bernoulli", "Multinomial", "Dropout", "If", "Loop", "Scan", "Sequence", "Optional", "Split")


class Folding:
    """Values of arrays of one graph; what is found about integers is kept with the graph."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self._found: dict[str, Value | None] = {}
        self._depth = 0

    def value(self, name: str | None) -> Value | None:
        """The elements of ``name``; None where they depend on the data."""
        if name is None:
            return None
        if name not in self._found:
            self._depth += 1
            self._found[name] = self._value(name) if self._depth < _MAX_DEPTH else None
            self._depth -= 1
        return self._found[name]

    def _value(self, name: str) -> Value | None:
        graph = self.graph
        size = graph.size(name)
        if not isinstance(size, int) or size > _MAX_ELEMENTS:
            return None
        if name in graph.constants:
            return _objects(graph.constants[name])
        if name in graph.source.shape_values:
            return _fill(graph.source.shape_values[name], graph.shape(name))
        if graph.is_view(name):
            return self._of_view(name)
        node = graph.producer(name)
        if not isinstance(node, Operator) or node.domain not in ("", "ai.onnx"):
            return None
        value = self._compute(node, name)
        if value is not None and types.is_integer(graph.dtype(name)):
            graph.source.shape_values[name] = tuple(dim(v) for v in value.reshape(-1))
        return value

    def _of_view(self, name: str) -> Value | None:
        graph = self.graph
        inner, offset = self.value(graph.view_source(name)), graph.view_offset(name)
        layout = (*graph.shape(name), *graph.strides(name), offset)
        if inner is None or not graph.is_contiguous(graph.view_source(name)):
            return None
        if not all(isinstance(e, int) for e in layout):
            return None
        shape, strides = graph.shape(name), graph.strides(name)
        places = np.full(shape, offset, np.int64)
        for axis, (extent, stride) in enumerate(zip(shape, strides)):
            places += (np.arange(extent) * stride).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        return inner.reshape(-1)[places]

    def _compute(self, node: Operator, name: str) -> Value | None:
        position = self.graph.outputs_of(node).index(name)
        names = self.graph.inputs_of(node)
        if node.op_type in ("Shape", "Size"):
            return _of_shape(self.graph.shape(str(names[0])), node)
        inputs = [self.value(n) for n in names]
        if any(v is None for v, n in zip(inputs, names) if n is not None):
            return None
        rule = _RULES.get(node.op_type)
        try:
            value = rule(FoldingStep(self.graph, node, inputs, position)) if rule is not None else None
        except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
            value = None
        if value is None:
            value = self._refer(node, names, inputs, position)
        return value if value is not None and value.shape == tuple(self.graph.shape(name)) else None

    def _refer(self, node: Operator, names: Any, inputs: Sequence[Value | None], position: int) -> Value | None:
        """By ONNX's own implementation, for numbers."""
        if node.op_type.startswith(_IMPURE) or any(v is not None and not is_numeric(v) for v in inputs):
            return None
        operands = [
            None if n is None or v is None else v.astype(types.to_numpy(self.graph.dtype(n)))
            for n, v in zip(names, inputs)
        ]
        try:
            return _objects(reference.compute(node, operands)[position])
        except (Unsupported, IndexError):
            return None


class FoldingStep:
    """One operator: its node, the values of its inputs, and which of its outputs is wanted."""

    def __init__(self, graph: Graph, node: Operator, inputs: Sequence[Value | None], position: int):
        self.graph, self.node, self.inputs, self.position = graph, node, inputs, position

    def __getitem__(self, position: int) -> Value:
        value = self.inputs[position]
        if value is None:
            raise IndexError(f"input {position} of {self.node.op_type} is absent")
        return value

    @property
    def dtype(self) -> DType:
        """Of the wanted output."""
        return self.graph.dtype(self.graph.result(self.node, self.position))

    @property
    def shape(self) -> Shape:
        """The declared shape of the wanted output."""
        return tuple(self.graph.shape(self.graph.result(self.node, self.position)))

    def integers(self, attribute: str, position: int) -> list[int] | None:
        """Integers given as an attribute or an input; None where neither is there."""
        value = self.node.attribute(attribute)
        if value is None and position < len(self.inputs) and self.inputs[position] is not None:
            value = self[position].reshape(-1).tolist()
        return None if value is None else [int(v) for v in (value if isinstance(value, list) else [value])]


def _objects(value: np.ndarray) -> Value:
    return _fill(value.reshape(-1).tolist(), value.shape)


def _fill(elements: Sequence[object], shape: Sequence[Any]) -> Value:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape([int(n) for n in shape])


def is_numeric(value: Value) -> bool:
    """Does ``value`` hold no expression over sizes?"""
    return not any(isinstance(v, sympy.Basic) for v in value.reshape(-1))


def _of_shape(shape: tuple[object, ...], node: Operator) -> Value:
    if node.op_type == "Size":
        return _fill([dim(sympy.Mul(*shape))], ())
    part = shape[slice(node.attribute("start", 0), node.attribute("end"))]
    return _fill(part, (len(part),))


# -------------------------------------------------------------------- arithmetic

Rule: TypeAlias = Callable[[FoldingStep], "Value | None"]


def _pointwise(combine: Callable[..., Any]) -> Rule:
    """A rule for integers and exact fractions; floats are left to the reference, unless sizes occur."""

    def rule(step: FoldingStep) -> Value | None:
        present = [v for v in step.inputs if v is not None]
        if all(is_numeric(v) for v in present) and any(isinstance(e, float) for v in present for e in v.reshape(-1)):
            return None
        arrays = np.broadcast_arrays(*present)
        rows = zip(*(a.reshape(-1) for a in arrays))
        return _fill([_tidy(combine(*map(_exact, row))) for row in rows], arrays[0].shape)

    return rule


def _exact(value: object) -> Any:
    """A float as a fraction that floats hold exactly, small enough for products of it with sizes to be exact, too."""
    if not isinstance(value, float):
        return value
    fraction = Fraction(value)  # raises for infinities and NaN
    if fraction.denominator > _MAX_DENOMINATOR:
        raise ValueError(f"{value} is no short binary fraction")
    return sympy.Rational(fraction.numerator, fraction.denominator)


def _tidy(value: Any) -> Any:
    if isinstance(value, (bool, int)):
        return value
    if value in (sympy.true, sympy.false):
        return bool(value)
    value = sympy.sympify(value)
    return int(value) if value.is_Integer else float(value) if value.is_Rational else value


def _divide(step: FoldingStep) -> Value | None:
    whole = types.is_integer(step.dtype)
    return _pointwise(_quotient if whole else lambda a, b: sympy.sympify(a) / b)(step)


def _quotient(a: Dim, b: Dim) -> Dim:
    """Towards zero for numbers, as in C; sizes are taken to be 0 or more."""
    if isinstance(a, int) and isinstance(b, int):
        return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    return sympy.floor(sympy.sympify(a) / b)


def _remainder(step: FoldingStep) -> Value | None:
    """With the sign of the divisor, or as in C."""
    return _pointwise(_c_remainder if step.node.attribute("fmod", 0) else _modulo)(step)


def _c_remainder(a: Dim, b: Dim) -> Dim:
    if not isinstance(a, int) or not isinstance(b, int):
        raise ValueError("the sign of a size is not known")
    return a - b * _quotient(a, b)


def _modulo(a: Dim, b: Dim) -> Dim:
    return a % b if isinstance(a, int) and isinstance(b, int) else a - b * sympy.floor(sympy.sympify(a) / b)


def _comparison(*accepts: int) -> Callable[[Any, Any], Any]:
    """Whether the sign of a - b is one of ``accepts``. Raises ValueError where that depends on the sizes."""

    def compare(a: object, b: object) -> bool:
        signs = ALL_SIZES.signs(sympy.sympify(a) - b)
        if signs <= set(accepts):
            return True
        if signs.isdisjoint(accepts):
            return False
        raise ValueError(f"{a} and {b} cannot be compared for all sizes")

    return compare


def _extreme(largest: bool) -> Callable[..., Any]:
    def pick(*terms: object) -> Any:
        best = terms[0]
        for term in terms[1:]:
            signs = ALL_SIZES.signs((sympy.sympify(term) - best) * (1 if largest else -1))
            if signs <= {0, 1}:
                best = term
            elif not signs <= {-1, 0}:
                best = (sympy.Max if largest else sympy.Min)(best, term)
        return best

    return pick


def _floor(a: Dim) -> Dim:
    return a if isinstance(a, int) else sympy.floor(a)


def _cast(step: FoldingStep) -> Value | None:
    x = step[0]
    if is_numeric(x):
        return _objects(x.astype(types.to_numpy(step.graph.dtype(step.graph.operand(step.node, 0)))).astype(
            types.to_numpy(step.dtype)
        ))  # fmt: skip
    if types.is_bool(step.dtype):
        return None
    return _pointwise(_floor if types.is_integer(step.dtype) else lambda a: a)(step)


# -------------------------------------------------------------------- moving


def _axis(step: FoldingStep, default: int = 0) -> int:
    return int(step.node.attribute("axis", default))


def _slice(step: FoldingStep) -> Value:
    x = step[0]
    starts, ends = (step.integers(n, k) or [] for n, k in (("starts", 1), ("ends", 2)))
    axes = step.integers("axes", 3) or list(range(len(starts)))
    steps = step.integers("steps", 4) or [1] * len(starts)
    index = [slice(None)] * x.ndim
    for a, start, end, by in zip(axes, starts, ends, steps, strict=True):
        # an end before the first element, going back, means all of them
        stop = None if by < 0 and end < -x.shape[a] else end
        index[a % x.ndim] = slice(start, stop, by)
    return x[tuple(index)]


def _split(step: FoldingStep) -> Value:
    axis = _axis(step)
    outputs = step.graph.outputs_of(step.node)
    sizes = [0 if n is None else int(step.graph.shape(n)[axis]) for n in outputs]
    start = sum((step.integers("split", 1) or sizes)[: step.position])
    return step[0].take(range(start, start + sizes[step.position]), axis)


def _scatter_nd(step: FoldingStep) -> Value | None:
    if step.node.attribute("reduction", "none") != "none":
        return None
    result, index = step[0].copy(), step[1].astype(np.int64)
    result[tuple(np.moveaxis(index, -1, 0))] = step[2]
    return result


def _reduction(combine: Callable[..., Any]) -> Rule:
    def rule(step: FoldingStep) -> Value | None:
        axes = step.integers("axes", 1)
        x, all_ints = step[0], types.is_integer(step.dtype)
        if not all_ints or x.size == 0 or (not axes and step.node.attribute("noop_with_empty_axes", 0)):
            return None
        reduced_axes = sorted({a % x.ndim for a in axes or range(x.ndim)})
        outer = [k for k in range(x.ndim) if k not in reduced_axes]
        rows = x.transpose([*outer, *reduced_axes]).reshape([*(x.shape[k] for k in outer), -1])
        reduced = [_tidy(combine(*row)) for row in rows.reshape(-1, rows.shape[-1])]
        return _fill(reduced, step.shape)

    return rule


def _range(step: FoldingStep) -> Value | None:
    start, limit, delta = (v.reshape(-1)[0] for v in (step[0], step[1], step[2]))
    if not all(isinstance(v, int) for v in (start, limit, delta)):
        return None
    return _fill(list(range(start, limit, delta)), step.shape)


def _constant_of_shape(step: FoldingStep) -> Value:
    value = np.asarray(step.node.attribute("value", np.zeros(1, np.float32))).reshape(-1)[0].item()
    return np.full([int(n) for n in step[0]], value, object)


def _gather(step: FoldingStep) -> Value:
    return np.asarray(np.take(step[0], step[1].astype(np.int64), _axis(step)), object)


def _concat(step: FoldingStep) -> Value:
    return np.concatenate([v for v in step.inputs if v is not None], _axis(step))


def _as_declared(step: FoldingStep) -> Value:
    return step[0].reshape([int(n) for n in step.shape])


_RULES: dict[str, Rule] = {
    "Add": _pointwise(lambda a, b: a + b),
    "Sub": _pointwise(lambda a, b: a - b),
    "Mul": _pointwise(lambda a, b: a * b),
    "Div": _divide,
    "Mod": _remainder,
    "Neg": _pointwise(lambda a: -a),
    "Abs": _pointwise(lambda a: a if ALL_SIZES.is_natural(a) else sympy.Abs(a)),
    "Floor": _pointwise(_floor),
    "Ceil": _pointwise(lambda a: a if isinstance(a, int) else -sympy.floor(-a)),
    "Min": _pointwise(_extreme(False)),
    "Max": _pointwise(_extreme(True)),
    "Sum": _pointwise(lambda *terms: sum(terms)),
    "Equal": _pointwise(_comparison(0)),
    "Less": _pointwise(_comparison(-1)),
    "LessOrEqual": _pointwise(_comparison(-1, 0)),
    "Greater": _pointwise(_comparison(1)),
    "GreaterOrEqual": _pointwise(_comparison(0, 1)),
    "And": _pointwise(lambda a, b: a and b),
    "Or": _pointwise(lambda a, b: a or b),
    "Not": _pointwise(lambda a: not a),
    "Cast": _cast,
    "Where": lambda step: np.where(step[0].astype(bool), step[1], step[2]),
    "Identity": lambda step: step[0],
    "Reshape": _as_declared,
    "Flatten": _as_declared,
    "Squeeze": _as_declared,
    "Unsqueeze": _as_declared,
    "Expand": lambda step: np.broadcast_to(step[0], [int(n) for n in step.shape]),
    "Tile": lambda step: np.tile(step[0], [int(n) for n in step[1]]),
    "Transpose": lambda step: step[0].transpose(step.node.attribute("perm")),
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "ScatterND": _scatter_nd,
    "ReduceProd": _reduction(lambda *row: sympy.Mul(*row)),
    "ReduceSum": _reduction(lambda *row: sympy.Add(*row)),
    "ReduceMin": _reduction(_extreme(False)),
    "ReduceMax": _reduction(_extreme(True)),
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
}
