"""Weighted taps: along an axis each output is a weighted sum of a few input elements.

Resizing and adaptive averages are such sums. Tables of taps that are known when compiling make an operator of our own,
``Taps``, whose gradient is the transpose of its tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy

from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.types import DType
from daceopt.ops.core.registry import NUMBERS, Names, Operator, gradient, lowering
from daceopt.ops.families.interpolation import Table

DOMAIN = "daceopt"
_UNROLLED = 4  # sums of more taps are loops


@dataclass(frozen=True)
class Taps:
    """A table as arrays of the graph, of shape (positions, width); ``weight`` None: one tap of weight 1.

    ``gaps``: some taps are none at all (of weight 0). What they would read may be infinite.
    """

    index: str
    weight: str | None
    width: int
    gaps: bool = False

    def term(self, weight: sympy.Expr, value: sympy.Expr) -> sympy.Expr:
        return scalar.select(scalar.eq(weight, 0), 0, weight * value) if self.gaps else weight * value


def constant_taps(b: Builder, table: Table, dtype: DType) -> Taps:
    """A table whose numbers are known, weights as ``dtype``."""
    weight = None if table.weight is None else b.constant(table.weight.astype(types.to_numpy(dtype)))
    gaps = table.weight is not None and not table.weight.all()
    return Taps(b.constant(table.index), weight, table.index.shape[1], gaps)


def weigh(b: Builder, x: str, a: int, taps: Taps, out: str | None = None) -> str:
    """out[..., o, ...] = sum over k of weight[o, k] * x[..., index[o, k], ...], at axis ``a``."""
    shape = list(b.graph.shape(x))
    shape[a] = b.graph.shape(taps.index)[0]
    y = out or b.graph.add_array("resize", shape, b.graph.dtype(x))
    whole = (None,) * len(shape)
    if taps.width > _UNROLLED:
        reads = {
            "x": (x, lambda *i: whole),
            "t": (taps.index, lambda *i: (i[a], i[-1])),
            "w": (str(taps.weight), lambda *i: (i[a], i[-1])),
        }
        terms = {"out": (y, lambda *i: i[:-1], "sum")}
        b.map(
            (*shape, taps.width), reads, terms,
            lambda i, x, t, w: taps.term(w, scalar.load(x, *i[:a], t, *i[a + 1 : -1])), label="resize",
        )  # fmt: skip
        return y
    reads = {"x": (x, lambda *i: whole)}
    for k in range(taps.width):
        reads[f"t{k}"] = (taps.index, lambda *i, k=k: (i[a], k))
        reads[f"w{k}"] = (str(taps.weight), lambda *i, k=k: (i[a], k))

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, **operands: sympy.Expr) -> sympy.Expr:
        read = (scalar.load(x, *i[:a], operands[f"t{k}"], *i[a + 1 :]) for k in range(taps.width))
        return sympy.Add(*(taps.term(operands[f"w{k}"], value) for k, value in enumerate(read)))

    b.map(shape, reads, {"out": (y, lambda *i: i)}, element, label="resize")
    return y


# -------------------------------------------------------------------- the operator


def attributes(tables: Mapping[int, Table]) -> dict[str, Any]:
    """Those of a ``Taps`` operator that applies a table along each axis given."""
    result: dict[str, Any] = {"axes": list(tables)}
    for k, table in enumerate(tables.values()):
        result[f"index{k}"] = table.index.tolist()
        if table.weight is not None:
            result[f"weight{k}"] = table.weight.tolist()
    return result


def _tables(node: Operator) -> dict[int, Table]:
    tables = {}
    for k, axis in enumerate(node.attribute("axes")):
        weight = node.attribute(f"weight{k}")
        index = np.asarray(node.attribute(f"index{k}"), np.int64)
        tables[axis] = Table(index, None if weight is None else np.asarray(weight, np.float64), None)
    return tables


@lowering("Taps", types=NUMBERS, domain=DOMAIN)
def taps(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """One kernel where elements are only repeated or left out, else one per axis, those that shrink first."""
    x, out, tables = require(inputs, 0), require(outputs, 0), _tables(node)
    if all(table.weight is None for table in tables.values()):
        return _pick(b, x, tables, out)
    order = sorted(tables, key=lambda a: _growth(b, x, a, tables[a]))
    for a in order:
        x = weigh(b, x, a, _complete(b, tables[a], b.graph.dtype(x)), out if a == order[-1] else None)
    return None


def _growth(b: Builder, x: str, axis: int, table: Table) -> float:
    return float(len(table.index) / b.graph.shape(x)[axis])


def _complete(b: Builder, table: Table, dtype: DType) -> Taps:
    weight = np.ones(table.index.shape) if table.weight is None else table.weight
    return constant_taps(b, Table(table.index, weight, None), dtype)


def _pick(b: Builder, x: str, tables: Mapping[int, Table], out: str) -> None:
    """out[i...] = x[index[i]...] on all axes at once."""
    shape = b.graph.shape(out)
    reads: dict[str, tuple[str, IndexFunction]] = {"x": (x, lambda *i: (None,) * len(shape))}
    counts = {a: _repeats(table, b.graph.shape(x)[a]) for a, table in tables.items()}
    for a in [a for a, count in counts.items() if not count]:
        reads[f"t{a}"] = (b.constant(tables[a].index[:, 0]), lambda *i, a=a: (i[a],))

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr, **operands: sympy.Expr) -> sympy.Expr:
        places = {a: scalar.idiv(i[a], n) if n else operands[f"t{a}"] for a, n in counts.items()}
        return scalar.load(x, *(places.get(k, p) for k, p in enumerate(i)))

    b.map(shape, reads, {"out": (out, lambda *i: i)}, element)


def _repeats(table: Table, extent: int) -> int:
    """How often each element is repeated, where that is all that happens; else 0."""
    count, rest = divmod(len(table.index), extent)
    plain = table.weight is None and not rest and np.array_equal(table.index[:, 0], np.arange(count * extent) // count)
    return count if plain else 0


@gradient("Taps", domain=DOMAIN)
def taps_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """Each axis by the transpose of its table, in the opposite order."""
    dy = require(grads_out, 0)
    x, tables = require(inputs, 0), _tables(node)
    for a in sorted(tables, key=lambda a: _growth(b, x, a, tables[a]), reverse=True):
        dy = _spread(b, dy, a, tables[a], b.graph.shape(x)[a])
    return [dy]


def _spread(b: Builder, dy: str, a: int, table: Table, extent: int) -> str:
    count, shape = _repeats(table, extent), b.graph.shape(dy)
    if count:
        blocks = b.reshape(dy, (*shape[:a], extent, count, *shape[a + 1 :]))
        return b.reduce("sum", None, blocks, axes=(a + 1,))
    return weigh(b, dy, a, constant_taps(b, table.transpose(extent), b.graph.dtype(dy)))
