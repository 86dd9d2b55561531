"""Arrays that several nodes write in disjoint parts: single assignment per element instead of per array."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import Any

import sympy

from daceopt.ir.data.arrays import Arrays
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.sizes import ALL_SIZES, Sizes


def why_no_part(arrays: Arrays, name: str) -> str | None:
    """What keeps ``name`` from becoming a part of another array, or None."""
    reasons = {
        "a view": arrays.is_view(name),
        "a part already": arrays.is_part(name),
        "saved for the backward graph": name in arrays.saved,
        "an input, output or constant": not arrays.is_transient(name),
        "an array of rank 0": not arrays.shape(name),
    }
    return next((text for text, holds in reasons.items() if holds), None)


def within(arrays: Arrays, whole: str) -> list[str]:
    """``whole``, its parts, and theirs."""
    names = [whole]
    for name in names:
        names.extend(arrays.parts_of(name))
    return names


def covering(arrays: Arrays, name: str, starts: Sequence[Dim], extents: Sequence[Dim]) -> tuple[str, list[Dim]]:
    """The smallest part of ``name`` that surely has the whole box, and where the box begins in it; else ``name``."""
    for part in arrays.parts_of(name):
        inside = [_plain(s - t) for s, t in zip(starts, arrays.part(part).starts, strict=True)]
        rest = [n - s - e for n, s, e in zip(arrays.shape(part), inside, extents, strict=True)]
        if all(map(arrays.sizes.is_natural, [*inside, *rest])):
            return covering(arrays, part, inside, extents)
    return name, list(starts)


Box = tuple[Sequence[Dim], Sequence[Dim]]
"""Starts and extents."""


def tile(boxes: Sequence[Box], shape: Sequence[Dim], sizes: Sizes) -> bool:
    """Do boxes have each element of an array of ``shape`` once, for all ``sizes``?"""
    inside = all(is_inside(box, shape, sizes) for box in boxes)
    total: Dim = sum(prod(extents) for _, extents in boxes)
    full = sympy.expand(total - prod(shape)) == 0
    return inside and full and all(apart(one, other, sizes) for one, other in combinations(boxes, 2))


def apart(one: Box, other: Box, sizes: Sizes = ALL_SIZES) -> bool:
    """Do two boxes have no element in common?"""
    if any(e == 0 for _, extents in (one, other) for e in extents):
        return True
    ends = zip(*one, *other, strict=True)
    return any(sizes.is_natural(t - s - e) or sizes.is_natural(s - t - f) for s, e, t, f in ends)


def is_inside(box: Box, shape: Sequence[Dim], sizes: Sizes) -> bool:
    """Does a box lie in an array of ``shape``, for all ``sizes``?"""
    places = zip(*box, shape, strict=True)
    return all(sizes.is_natural(s) and sizes.is_natural(n - s - e) for s, e, n in places)


def _plain(value: Any) -> Dim:
    value = sympy.expand(value)
    return int(value) if value.is_Integer else value
