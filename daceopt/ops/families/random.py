"""Random numbers are a function of (seed, node, element), so that they are computed again instead of stored.

The seed is drawn from PyTorch's generator at each call. The attribute ``seed`` of generators takes its place: then
every call gives the same numbers, and so do two nodes of equal seed. Dropout's only tells its node from others.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import FLOATS, Names, Operator, lowering, supports, without_gradient
from daceopt.ops.families.elementwise import alias


def linear_index(params: tuple[sympy.Symbol, ...], shape: tuple[Dim, ...]) -> sympy.Expr:
    """Row-major position of an element."""
    position: sympy.Expr = sympy.Integer(0)
    for p, extent in zip(params, shape):
        position = position * extent + p
    return position


def stream(name: str, seed: int | None = None) -> int:
    """The number that tells one random node from another: from its output's name, which copies of a graph share."""
    return zlib.crc32(f"{name}/{seed or 0}".encode())


def stream_of(node: Operator, name: str, seed: int | None = None) -> int:
    """The one that the attribute ``stream`` gives, where whoever made the node knows better than its output's name."""
    number = node.attribute("stream")
    return stream(name, seed) if number is None else int(number) & 0xFFFFFFFF


def as_attribute(number: int) -> int:
    """A stream as the attribute ``stream``, which has 32 bits and a sign."""
    return number - (1 << 32) if number >> 31 else number


def _is_training(graph: Graph, node: Operator, inputs: Names) -> bool | None:
    """None when it is decided at run time."""
    if node.since_version < 12:
        return False
    flag = values.at(inputs, 2)
    value = False if flag is None else values.scalar_value(graph, flag)
    return None if value is None else bool(value)


@lowering("Dropout", types=FLOATS)
def dropout(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, mask = require(inputs, 0), values.at(outputs, 1)
    out = outputs[0] or b.graph.add_array("dropout", b.graph.shape(x), b.graph.dtype(x))
    operand = values.at(inputs, 1)
    ratio = node.attribute("ratio", 0.5) if operand is None else values.scalar_value(b.graph, operand)
    if not _is_training(b.graph, node, inputs) or ratio == 0:
        if mask is not None:
            b.full(b.graph.shape(mask), True, b.graph.dtype(mask), out=mask)
        return alias(b, x, out)
    level = str(operand) if ratio is None else float(ratio)
    _mask(b, x, out, mask, level, stream_of(node, out, node.attribute("seed")))
    return None


def _mask(b: Builder, x: str, out: str, mask: str | None, ratio: str | float, number: int) -> None:
    """out = x * (keep ? 1 / (1 - ratio) : 0), also of an infinite or NaN x"""
    shape = b.graph.shape(x)
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (x, lambda *i: i), "seed": (b.graph.seed(), lambda *i: (0,))}
    if isinstance(ratio, str):
        reads["ratio"] = (b.reshape(ratio, ()), lambda *i: ())
    writes: dict[str, Any] = {"out": (out, lambda *i: i)} | ({"mask": (mask, lambda *i: i)} if mask is not None else {})

    def fn(
        i: tuple[sympy.Symbol, ...], x: sympy.Expr, seed: sympy.Expr, **runtime: sympy.Expr
    ) -> dict[str, sympy.Expr]:
        p = runtime.get("ratio", ratio)
        p = sympy.Float(p) if isinstance(p, float) else p
        keep = scalar.ge(scalar.uniform(seed, number, linear_index(i, shape)), p)
        factor = scalar.select(keep, 1 / (1 - p) if ratio != 1 else 0, 0)
        return {"out": x * factor, "mask": keep}

    b.map(shape, reads, writes, fn, label="dropout")


@supports("Dropout")
def why_not_dropout(graph: Graph, node: Operator) -> str | None:
    if _is_training(graph, node, graph.inputs_of(node)) is None:
        return values.UnknownValue.at("input training_mode of Dropout is computed at run time; expected a constant", 2)
    return None


# -------------------------------------------------------------------- generators

Draw = Callable[[int], sympy.Expr]  # the k-th number in [0, 1) that belongs to one element; k is 0 or 1


def draws(seed: sympy.Expr | int, number: int, position: sympy.Expr, wide: bool) -> Draw:
    """The numbers of the element at ``position`` of the stream ``number``: of 24 bits, or ``wide`` ones of 48."""

    def draw(k: int) -> sympy.Expr:
        if not wide:
            return scalar.uniform(seed, number, 2 * position + k)
        high, low = (scalar.uniform(seed, number, 4 * position + 2 * k + half) for half in (0, 1))
        double = types.from_name("float64")
        return scalar.cast(high, double) + scalar.cast(low, double) * sympy.Rational(1, 2**24)

    return draw


def standard_normal(draw: Draw) -> sympy.Expr:
    """Two uniform numbers become one of the standard normal distribution (Box and Muller, 1958)."""
    return sympy.sqrt(-2 * sympy.log(1 - draw(0))) * sympy.cos(draw(1) * sympy.Float(2 * math.pi, 17))


def _generate(
    b: Builder,
    node: Operator,
    out: str,
    name: str,
    fn: Callable[..., sympy.Expr],
    dtype: DType | None = None,
    **reads: str,
) -> None:
    """``out[i] = fn(draw, **elements of reads at i)``; draws have 24 bits as float32, or 48 as float64 (``dtype``)."""
    shape = b.graph.shape(out)
    wide = (dtype or b.graph.dtype(out)) == types.from_name("float64")
    fixed = node.attribute("seed")
    number = stream_of(node, name) if fixed is None else 0
    accesses: dict[str, Any] = {k: (v, lambda *i: i) for k, v in reads.items()}
    if fixed is None:
        accesses["seed"] = (b.graph.seed(), lambda *i: (0,))

    def value(i: tuple[sympy.Symbol, ...], seed: sympy.Expr | None = None, **operands: sympy.Expr) -> sympy.Expr:
        key = _bits(fixed) if fixed is not None else seed
        return fn(draws(key, number, linear_index(i, shape), wide), **operands)

    b.map(shape, accesses, {"out": (out, lambda *i: i)}, value, label=node.op_type.lower())


def _bits(seed: float) -> int:
    """An integer for every float32."""
    return int(struct.unpack("<i", struct.pack("<f", seed))[0])


@lowering("RandomUniform", "RandomUniformLike")
def random_uniform(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    low, high = node.attribute("low", 0.0), node.attribute("high", 1.0)
    out = require(outputs, 0)
    _generate(b, node, out, out, lambda draw: draw(0) * sympy.Float(high - low) + sympy.Float(low))


@lowering("RandomNormal", "RandomNormalLike")
def random_normal(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    mean, scale = (sympy.Float(node.attribute(name, default)) for name, default in (("mean", 0.0), ("scale", 1.0)))
    out = require(outputs, 0)
    _generate(b, node, out, out, lambda draw: standard_normal(draw) * scale + mean)


@supports("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def why_not_generator(graph: Graph, node: Operator) -> str | None:
    dtype = graph.dtype(graph.result(node, 0))
    return None if dtype in FLOATS else f"a result of {types.name_of(dtype)}; expected a float type"


@lowering("Bernoulli", types=FLOATS)
def bernoulli(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """1 with the probability given."""
    x, out = require(inputs, 0), require(outputs, 0)
    dtype = b.graph.dtype(out)

    def fn(draw: Draw, x: sympy.Expr) -> sympy.Expr:
        return scalar.cast(scalar.lt(draw(0), x), dtype)

    _generate(b, node, out, out, fn, b.graph.dtype(x), x=x)


@lowering("Multinomial", types=FLOATS)
def multinomial(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Class numbers drawn with probabilities exp(x): how many sums of the first weights a random threshold passes."""
    x, out = require(inputs, 0), require(outputs, 0)
    double = types.from_name("float64")
    (batch, samples), classes = b.graph.shape(out), b.graph.shape(x)[1]
    top = b.reduce("max", None, x, axes=(1,), keepdims=True, label="multinomial")
    weights = b.elementwise(
        lambda v, m: sympy.exp(scalar.cast(v, double) - scalar.cast(m, double)), x, top, dtype=double
    )
    sums = b.graph.add_array("multinomial", (batch, classes), double)
    b.graph.add_operator("CumSum", [weights, b.constant(np.array(1))], [sums])
    total = b.expand(b.slice(sums, [classes - 1], [classes], axes=[1]), (batch, samples))
    threshold = b.graph.add_array("multinomial", (batch, samples), double)
    _generate(b, node, threshold, out, lambda draw, total: draw(0) * total, total=total)
    rows, columns = b.unsqueeze(sums, [1]), b.unsqueeze(threshold, [2])
    b.reduce("sum", lambda s, t: scalar.select(scalar.le(s, t), 1, 0), rows, columns, axes=(2,), out=out)


@supports("Multinomial")
def why_not_multinomial(graph: Graph, node: Operator) -> str | None:
    shape = graph.shape(graph.operand(node, 0))
    if len(shape) != 2 or shape[1] == 0:
        return f"an input of shape {shape}; expected [batch, classes] with at least one class"
    return None


without_gradient("RandomNormalLike", "RandomUniformLike", "Bernoulli")
