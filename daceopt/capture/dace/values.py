"""Elements of arrays that a program of DaCe writes over and over, as arrays that are written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.extents import in_scalar_code

JOINED = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": scalar.maximum,
    "min": scalar.minimum,
}


@dataclass(frozen=True)
class ElementBox:
    """Elements ``start + step * k`` for ``k < extent`` of each dimension."""

    starts: tuple[Dim, ...]
    extents: Shape
    steps: tuple[int, ...]

    def covers(self, shape: Shape) -> bool:
        """Is it all of an array of ``shape``?"""
        dims = zip(self.starts, self.extents, self.steps, shape, strict=True)
        return all(dim(start) == 0 and dim(n - whole) == 0 and (step == 1 or n == 1) for start, n, step, whole in dims)


@dataclass(frozen=True)
class Deposit:
    """``value`` (of the box's extents) goes into ``box`` of an array; ``join``: it is added there, or so."""

    box: ElementBox
    value: str
    join: str | None = None


def window(b: Builder, name: str, box: ElementBox) -> str:
    """The elements of ``box``: a view, or all of the array itself."""
    if box.covers(b.graph.shape(name)):
        return name
    ends = [dim(start + n * step) for start, n, step in zip(box.starts, box.extents, box.steps)]
    if all(step == 1 for step in box.steps):
        return b.slice(name, box.starts, ends)
    shape, strides = b.graph.shape(name), b.graph.strides(name)
    assert len(shape) == len(box.starts)
    offset = sum(start * t for start, t in zip(box.starts, strides))
    steps = [dim(t * step) for t, step in zip(strides, box.steps)]
    return b.graph.add_view(name, b.label, box.extents, steps, dim(offset))


def overlaid(b: Builder, old: str, deposit: Deposit) -> str:
    """``old`` with what was deposited in it."""
    value = deposit.value
    if deposit.join is not None:
        join, dtype = JOINED[deposit.join], b.graph.dtype(old)
        value = b.elementwise(lambda x, y: join(x, y), window(b, old, deposit.box), value, dtype=dtype)
    if deposit.box.covers(b.graph.shape(old)):
        return value
    if all(step == 1 for step in deposit.box.steps):
        return _in_box(b, old, value, deposit.box, 0)
    return _among(b, old, value, deposit.box)


def _in_box(b: Builder, old: str, value: str, box: ElementBox, axis: int) -> str:
    """Rows before the box, the box, rows behind it; within its rows the same along the next axis."""
    shape = b.graph.shape(old)
    if axis == len(shape):
        return value
    start, n = box.starts[axis], box.extents[axis]
    inner = _in_box(b, _rows(b, old, axis, start, n), value, box, axis + 1)
    before = [] if dim(start) == 0 else [_rows(b, old, axis, 0, start)]
    rest = dim(shape[axis] - start - n)
    behind = [] if rest == 0 else [_rows(b, old, axis, dim(start + n), rest)]
    if not before and not behind:
        return inner
    whole = b.graph.add_array("joined", shape, b.graph.dtype(old))
    b.graph.add_operator("Concat", [*before, inner, *behind], [whole], {"axis": axis})
    return whole


def _rows(b: Builder, name: str, axis: int, start: Dim, count: Dim) -> str:
    shape = b.graph.shape(name)
    if dim(start) == 0 and dim(count - shape[axis]) == 0:
        return name
    return b.slice(name, [start], [dim(start + count)], axes=[axis])


def _among(b: Builder, old: str, value: str, box: ElementBox) -> str:
    """Each element is the one of the box that is there, where one does."""
    shape = b.graph.shape(old)
    new = b.graph.add_array("joined", shape, b.graph.dtype(old))

    def choose(params: Sequence[sympy.Symbol], x: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
        inside: list[Any] = []
        places: list[Any] = []
        for p, start, n, step in zip(params, box.starts, box.extents, box.steps, strict=True):
            distance = in_scalar_code(sympy.sympify(p - start))
            place = scalar.idiv(distance - scalar.pymod(distance, sympy.Integer(step)), sympy.Integer(step))
            inside += [scalar.eq(scalar.pymod(distance, sympy.Integer(step)), 0), scalar.ge(distance, 0)]
            inside.append(scalar.lt(place, in_scalar_code(sympy.sympify(n))))
            places.append(scalar.clamp(place, n))
        condition = inside[0]
        for more in inside[1:]:
            condition = scalar.logical_and(condition, more)
        return scalar.select(condition, scalar.load(y, *places), x)

    reads = {"x": (old, lambda *p: p), "y": (value, lambda *p: tuple(None for _ in p))}
    b.map(shape, reads, {"out": (new, lambda *p: p)}, choose)
    return new
