"""Dropout: the mask is a function of (seed, node, element), so that it is computed again instead of stored."""

from __future__ import annotations

import zlib
from typing import Any

import sympy

from daceopt.ir import scalar, types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim, Graph
from daceopt.ops import values
from daceopt.ops.elementwise import alias
from daceopt.ops.registry import FLOATS, Names, Operator, lowering, supports


def linear_index(params: Any, shape: tuple[Dim, ...]) -> Any:
    """Row-major position of an element."""
    position: Any = sympy.Integer(0)
    for p, extent in zip(params, shape):
        position = position * extent + p
    return position


def stream(name: str, seed: int | None = None) -> int:
    """The number that tells one random node from another: from its output's name, which copies of a graph share."""
    return zlib.crc32(f"{name}/{seed or 0}".encode())


def _is_training(graph: Graph, node: Operator, inputs: Names) -> bool | None:
    """None when it is decided at run time."""
    if node.since_version < 12:
        return False
    flag = values.at(inputs, 2)
    value = False if flag is None else values.scalar_value(graph, flag)
    return None if value is None else bool(value)


@lowering("Dropout", types=FLOATS)
def dropout(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out, mask = str(inputs[0]), str(outputs[0]), values.at(outputs, 1)
    given = values.at(inputs, 1)
    ratio = node.attribute("ratio", 0.5) if given is None else values.scalar_value(b.graph, given)
    if not _is_training(b.graph, node, inputs) or ratio == 0:
        if mask is not None:
            b.full(b.graph.shape(mask), True, types.from_name("bool"), out=mask)
        return alias(b, x, out)
    level = str(given) if ratio is None else float(ratio)
    _masked(b, x, out, mask, level, stream(out, node.attribute("seed")))
    return None


def _masked(b: Builder, x: str, out: str, mask: str | None, ratio: str | float, number: int) -> None:
    """out = keep ? x / (1 - ratio) : 0"""
    shape = b.graph.shape(x)
    reads: dict[str, Any] = {"x": (x, lambda *i: i), "seed": (b.graph.seed(), lambda *i: (0,))}
    if isinstance(ratio, str):
        reads["ratio"] = (b.reshape(ratio, ()), lambda *i: ())
    writes: dict[str, Any] = {"out": (out, lambda *i: i)} | ({"mask": (mask, lambda *i: i)} if mask is not None else {})

    def fn(i: Any, x: Any, seed: Any, **runtime: Any) -> dict[str, Any]:
        p = runtime.get("ratio", ratio)
        p = sympy.Float(p) if isinstance(p, float) else p
        keep = scalar.ge(scalar.uniform(seed, number, linear_index(i, shape)), p)
        scaled = x / (1 - p) if ratio != 1 else 0
        return {"out": scalar.select(keep, scaled, 0), "mask": keep}

    b.map(shape, reads, writes, fn, label="dropout")


@supports("Dropout")
def why_not_dropout(graph: Graph, node: Operator) -> str | None:
    if _is_training(graph, node, graph.inputs_of(node)) is None:
        return "input training_mode of Dropout is computed at run time; expected a constant"
    return None
