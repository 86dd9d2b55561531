"""Which box of an array a view shows: who writes what it shows, and of which part it is a view just as well."""

from __future__ import annotations

from collections.abc import Sequence

from daceopt.ir.data.arrays import Arrays
from daceopt.ir.data.parts import Box, apart, covering
from daceopt.ir.scalar.dims import Dim, dim


def box_of(arrays: Arrays, view: str) -> Box:
    """A box of what ``view`` is a view of, through chains of views, that has all elements of it.

    The smallest such box where the view walks along axes; all of the array where extents or strides are open.
    """
    source, (offset, shape, strides) = arrays.written_array(view), _layout(arrays, view)
    whole = arrays.shape(source)
    steps = arrays.strides(source)
    numbers = (offset, *shape, *strides, *whole, *steps)
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or 0 in (*shape, *whole):
        return [0] * len(whole), whole
    walks = [(int(n) - 1, int(s)) for n, s in zip(shape, strides) if n != 1 and s != 0]
    return _box(int(offset), walks, [int(n) for n in whole], [int(s) for s in steps])


def _layout(arrays: Arrays, view: str) -> tuple[Dim, Sequence[Dim], Sequence[Dim]]:
    """Where in its source the view begins, its extents and strides."""
    offset: Dim = 0
    name = view
    while arrays.is_view(name):
        offset = dim(offset + arrays.view_offset(name))
        name = arrays.view_source(name)
    return offset, arrays.shape(view), arrays.strides(view)


def _box(offset: int, walks: list[tuple[int, int]], shape: list[int], strides: list[int]) -> Box:
    """From the axis of the largest stride inwards: what walks along it, and whether the rest carries over into it."""
    starts, extents = [0] * len(shape), list(shape)
    for axis in sorted((k for k, n in enumerate(shape) if n > 1 and strides[k]), key=lambda k: -strides[k]):
        step = strides[axis]
        rest = [(far, s) for far, s in walks if s % step]
        first, offset = divmod(offset, step)
        inside = offset + sum(far * s for far, s in rest)
        last = first + sum(far * (s // step) for far, s in walks if not s % step) + inside // step
        starts[axis], extents[axis] = first, max(min(last, shape[axis] - 1) - first + 1, 0)
        if inside >= step:  # what lies further in starts again: all of it
            break
        walks = rest
    return starts, extents


def sources(arrays: Arrays, view: str) -> list[str]:
    """The arrays, each written by one node, that have elements which ``view`` shows."""
    return list(_reach(arrays, arrays.written_array(view), box_of(arrays, view)))


def _reach(arrays: Arrays, name: str, box: Box) -> list[str]:
    parts = arrays.parts_of(name)
    if not parts:
        return [name]
    names = []
    for part in parts:
        starts, extents = arrays.part(part).starts, arrays.shape(part)
        if not apart(box, (starts, extents)):
            inside = [dim(s - t) for s, t in zip(box[0], starts, strict=True)]
            names += _reach(arrays, part, (inside, box[1]))
    return names


def nearest(arrays: Arrays, view: str) -> str:
    """A view of the smallest part that has all that ``view`` shows; ``view`` itself where that is what it is of."""
    source = arrays.written_array(view)
    if source == view or not arrays.parts_of(source):
        return view
    starts, extents = box_of(arrays, view)
    part, _ = covering(arrays, source, starts, extents)
    if part == source:
        return view
    offset, shape, strides = _layout(arrays, view)
    begin = dim(arrays.root(part)[1] - arrays.root(source)[1])
    return arrays.add_view(part, view, shape, strides, dim(offset - begin))
