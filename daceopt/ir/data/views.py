"""What happens to views when the array below them changes its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.ir.data.arrays import Arrays
from daceopt.ir.scalar.affine import quotient, same
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.sizes import ALL_SIZES

Layout = tuple[tuple[Dim, ...], Dim]  # strides and offset


def follow(arrays: Arrays, source: str, before: Sequence[Dim], after: Sequence[Dim]) -> dict[str, Layout]:
    """New layouts of all views over ``source`` when its strides change. ValueError where a view cannot follow."""
    layouts: dict[str, Layout] = {}
    if before == after:
        return layouts
    for view in arrays.views_of(source):
        own = arrays.strides(view)
        layout = rebase(arrays.shape(view), own, arrays.view_offset(view), arrays.shape(source), before, after)
        if layout is None:
            raise ValueError(f"view {view} of {source} cannot follow it from strides {before} to {after}")
        layouts[view] = layout
        layouts |= follow(arrays, view, own, layout[0])
    return layouts


@dataclass(frozen=True)
class _Axis:
    """A run of source dimensions that is one dimension in both layouts."""

    extent: Dim
    old: Dim
    new: Dim


def rebase(
    shape: Sequence[Dim],
    strides: Sequence[Dim],
    offset: Dim,
    source_shape: Sequence[Dim],
    old: Sequence[Dim],
    new: Sequence[Dim],
) -> Layout | None:
    """Strides and offset that select, in a source laid out as ``new``, what the view selects in a source laid out as
    ``old``.

    All strides count elements. None when no strides do, or when that cannot be proved: the caller must copy.
    """
    axes = _axes(source_shape, old, new)
    placed = _offset(offset, axes)
    if placed is None:
        return None
    reach, new_offset = placed
    result: list[Dim] = []
    for extent, stride in zip(shape, strides):
        if extent == 1 or stride == 0:
            result.append(0)
            continue
        axis = _axis_of(stride, axes)
        step = None if axis is None else quotient(stride, axis.old)
        if axis is None or step is None:
            return None
        reach[axis] = reach[axis] + (extent - 1) * step
        result.append(_plain(step * axis.new))
    if not all(ALL_SIZES.is_positive(axis.extent - far) for axis, far in reach.items()):
        return None
    return tuple(result), new_offset


def _axes(shape: Sequence[Dim], old: Sequence[Dim], new: Sequence[Dim]) -> list[_Axis]:
    """Source dimensions by falling old stride, neighbours merged where both layouts agree that they are one run."""
    axes = [_Axis(n, o, w) for n, o, w in zip(shape, old, new) if n != 1 and o != 0]
    merged: list[_Axis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if last and same(last.old, axis.extent * axis.old) and same(last.new, axis.extent * axis.new):
            merged[-1] = _Axis(_plain(last.extent * axis.extent), axis.old, axis.new)
        else:
            merged.append(axis)
    return merged


def _offset(offset: Dim, axes: list[_Axis]) -> tuple[dict[_Axis, Dim], Dim] | None:
    """Where the view starts along each axis, and the offset in the new layout."""
    reach: dict[_Axis, Dim] = dict.fromkeys(axes, 0)
    if offset == 0:
        return reach, 0
    if not isinstance(offset, int) or not all(isinstance(a.old, int) for a in axes):
        return None
    result: Dim = 0
    for axis in sorted(axes, key=lambda a: a.old, reverse=True):
        reach[axis], offset = divmod(offset, axis.old)
        result = result + reach[axis] * axis.new
    return (reach, _plain(result)) if offset == 0 else None


def _axis_of(stride: Dim, axes: list[_Axis]) -> _Axis | None:
    """The axis that a view's stride steps along: the one of the largest stride that divides it."""
    fitting = [a for a in axes if quotient(abs(stride) if isinstance(stride, int) else stride, a.old) is not None]
    if not fitting or (isinstance(stride, int) and stride < 0):
        return None
    best = fitting[0]
    for axis in fitting[1:]:
        if quotient(axis.old, best.old) is not None:
            best = axis
    return best


def _plain(value: Any) -> Dim:
    if isinstance(value, int):
        return value
    value = sympy.expand(value)
    return int(value) if value.is_Integer else value
