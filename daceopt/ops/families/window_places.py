"""Where the elements of sliding windows are in an image: in it always, sometimes or never, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.extents import in_scalar_code


@dataclass(frozen=True)
class WindowPlaces:
    """Windows over an image of spatial dimensions ``image``: one for each element ``params`` of a result of dimensions
    ``result``. Element ``k`` of a window is at ``stride * param + k * dilation - begin``."""

    image: Sequence[Dim]
    result: Sequence[Dim]
    params: Sequence[Any]
    strides: Sequence[int]
    dilations: Sequence[int]
    begins: Sequence[int]

    def place(self, axis: int, k: int) -> sympy.Expr:
        """Where element ``k`` of a window is in the image, or in its padding."""
        return self.strides[axis] * self.params[axis] + (k * self.dilations[axis] - self.begins[axis])

    def nearest(self, offset: Sequence[int]) -> tuple[Dim, ...]:
        """The element of the image that is nearest to that of the window."""
        index = []
        for axis, k in enumerate(offset):
            place = self.place(axis, k)
            place = place if self.never_before(axis, k) else sympy.Max(0, place)
            index.append(place if self.never_behind(axis, k) else sympy.Min(self.image[axis] - 1, place))
        return tuple(index)

    def never_before(self, axis: int, k: int) -> bool:
        """Is no element ``k`` of a window before the image?"""
        return bool(k * self.dilations[axis] >= self.begins[axis])

    def never_behind(self, axis: int, k: int) -> bool:
        """Is none surely behind it?"""
        last = self.place(axis, k).subs(self.params[axis], self.result[axis] - 1)
        room = affine(self.image[axis] - 1 - last)
        return isinstance(room.constant, int) and room.constant >= 0

    def inside(self, offset: Sequence[int]) -> sympy.Expr:
        """The condition on which that element of a window is one of the image, in scalar code; None: always."""
        condition = None
        for axis, k in enumerate(offset):
            place = self.place(axis, k)
            tests = [] if self.never_before(axis, k) else [scalar.ge(place, 0)]
            tests += [] if self.never_behind(axis, k) else [scalar.lt(place, in_scalar_code(self.image[axis]))]
            for test in tests:
                condition = test if condition is None else scalar.logical_and(condition, test)
        return condition
