"""Where the elements of a resized axis come from: indices and weights of the taps of each output position.

The formulas are those of ONNX's Resize. They are written once, over a vocabulary that NumPy (tables known at compile
time) and scalar expressions (tables over symbolic extents) share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import dace
import numpy as np
import sympy

from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim

NUMPY = SimpleNamespace(
    floor=np.floor, ceil=np.ceil, select=np.where, lt=np.less, le=np.less_equal, gt=np.greater, ge=np.greater_equal,
    eq=np.equal, logical_or=np.logical_or, logical_and=np.logical_and, minimum=np.minimum, maximum=np.maximum,
    absolute=np.abs, integer=lambda x: np.asarray(x).astype(np.int64), number=float,
)  # fmt: skip
EXPRESSIONS = SimpleNamespace(
    floor=scalar.floor, ceil=scalar.ceil, select=scalar.select, lt=scalar.lt, le=scalar.le, gt=scalar.gt, ge=scalar.ge,
    eq=scalar.eq, logical_or=scalar.logical_or, logical_and=scalar.logical_and, minimum=scalar.minimum,
    maximum=scalar.maximum, absolute=scalar.absolute, integer=lambda x: scalar.cast(x, dace.int64),
    number=lambda x: sympy.Float(x, 17) if isinstance(x, (int, float)) else scalar.cast(x, dace.float64),
)  # fmt: skip

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip
ROUNDINGS: dict[str, Callable[[sympy.Expr, sympy.Expr, sympy.Expr], sympy.Expr]] = {
    "round_prefer_floor": lambda m, x, scale: m.ceil(x - 0.5),
    "round_prefer_ceil": lambda m, x, scale: m.floor(x + 0.5),
    "floor": lambda m, x, scale: m.floor(x),
    "ceil": lambda m, x, scale: m.ceil(x),
    # Upsample and Resize 10 in ONNX Runtime
    "simple": lambda m, x, scale: m.select(m.lt(scale, 1), m.ceil(x), m.floor(x)),
}


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: extents, the factor between them, the part (roi) that is taken, and the filter."""

    extent: Dim
    result: Any
    scale: Any  # a float, or an expression over size symbols
    mode: str  # nearest, linear or cubic
    coordinates: str
    rounding: str = "round_prefer_floor"
    roi: tuple[float, float] = (0.0, 1.0)
    cubic: float = -0.75
    antialias: bool = False
    inside_only: bool = False  # taps outside get no weight

    @property
    def width(self) -> int:
        """The number of taps. Antialiasing widens the filter where the scale is below 1."""
        if self.mode == "nearest":
            return 1
        return 2 - 2 * self._first

    @property
    def _first(self) -> int:
        """The first tap, counted from the one at or below the position."""
        reach = 1 if self.mode == "linear" else 2
        return math.floor(-reach / self._stretch) + 1

    @property
    def _stretch(self) -> sympy.Expr:
        return min(self.scale, 1.0) if self.antialias else 1.0

    @property
    def is_constant(self) -> bool:
        return all(isinstance(v, (int, float)) for v in (self.extent, self.result, self.scale))

    def position(self, m: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
        """The (fractional) coordinate in the source of output position ``y``, a float."""
        extent, scale = m.number(self.extent), m.number(self.scale)
        length = scale * extent
        if self.coordinates == "asymmetric":
            return y / scale
        if self.coordinates == "align_corners":
            return m.select(m.eq(length, 1), 0.0 * y, y * (extent - 1) / _unless_zero(m, length - 1))
        if self.coordinates == "tf_crop_and_resize":
            start, end = self.roi
            span = (end - start) * (extent - 1)
            along = m.select(m.eq(length, 1), span / 2 + 0.0 * y, y * span / _unless_zero(m, length - 1))
            return along + start * (extent - 1)
        if self.coordinates == "tf_half_pixel_for_nn":
            return (y + 0.5) / scale
        half = (y + 0.5) / scale - 0.5
        if self.coordinates == "pytorch_half_pixel":
            return m.select(m.eq(length, 1), -0.5 + 0.0 * y, half)
        if self.coordinates == "half_pixel_symmetric":
            return half + extent / 2 * (1 - m.number(self.result) / length)
        return half

    def outside(self, m: sympy.Expr, y: sympy.Expr) -> sympy.Expr:
        """Whether the position lies outside of the source (where the extrapolation value is used)."""
        x = self.position(m, y)
        return m.logical_or(m.lt(x, 0), m.gt(x, m.number(self.extent) - 1))

    def tap(self, m: sympy.Expr, y: sympy.Expr, k: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        """(index, weight) of tap ``k`` of output position ``y``; the index is brought inside."""
        x = self.position(m, y)
        if self.mode == "nearest":
            return self._clamp(m, ROUNDINGS[self.rounding](m, x, m.number(self.scale))), None
        first = m.floor(x) + self._first
        whole = [self._weight(m, x, first + j) for j in range(self.width)]
        return self._clamp(m, first + k), self._weight(m, x, first + k) / sum(whole[1:], whole[0])

    def _weight(self, m: sympy.Expr, x: sympy.Expr, index: sympy.Expr) -> sympy.Expr:
        distance = m.absolute(index - x) * self._stretch
        weight = m.maximum(1 - distance, 0.0) if self.mode == "linear" else cubic_weight(m, distance, self.cubic)
        if not self.inside_only:
            return weight
        within = m.logical_and(m.ge(index, 0), m.le(index, m.number(self.extent) - 1))
        return m.select(within, weight, 0.0)

    def _clamp(self, m: sympy.Expr, index: sympy.Expr) -> sympy.Expr:
        return m.integer(m.minimum(m.maximum(index, 0.0), m.number(self.extent) - 1))


def _unless_zero(m: sympy.Expr, x: sympy.Expr) -> sympy.Expr:
    return m.select(m.eq(x, 0), 1.0, x)


def cubic_weight(m: sympy.Expr, distance: sympy.Expr, a: float) -> sympy.Expr:
    """Keys' cubic convolution kernel (IEEE Trans. ASSP 29, 1981) at a distance of 0 or more."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return m.select(m.le(distance, 1), near, m.select(m.lt(distance, 2), far, 0.0))


# -------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Table:
    """Taps of a whole axis: ``index`` and ``weight`` of shape (positions, taps)."""

    index: np.ndarray
    weight: np.ndarray | None  # None: one tap of weight 1
    outside: np.ndarray | None  # positions that hold the extrapolation value

    def transpose(self, extent: int) -> Table:
        """The taps of the gradient: for each source position, the outputs that it went to."""
        count, taps = self.index.shape
        weight = np.ones(self.index.shape) if self.weight is None else self.weight
        used = weight != 0
        source, output = self.index[used], np.broadcast_to(np.arange(count)[:, None], (count, taps))[used]
        order = np.argsort(source, kind="stable")
        source, output, weights = source[order], output[order], weight[used][order]
        fan = np.bincount(source, minlength=extent)
        width = max(int(fan.max(initial=0)), 1)
        slot = np.arange(len(source)) - np.repeat(np.cumsum(fan) - fan, fan)
        index, values = np.zeros((extent, width), np.int64), np.zeros((extent, width))
        index[:] = _first_of_each(source, output, extent)[:, None]
        index[source, slot], values[source, slot] = output, weights
        return Table(index, values, None)


def _first_of_each(source: np.ndarray, output: np.ndarray, extent: int) -> np.ndarray:
    """An output of each source, which unused taps (of weight 0) repeat."""
    first = np.zeros(extent, np.int64)
    first[source[::-1]] = output[::-1]
    return first


def table(axis: Axis) -> Table:
    """The taps of an axis whose extents and scale are numbers."""
    y = np.arange(axis.result, dtype=np.float64)[:, None]
    with np.errstate(all="ignore"):
        index, weight = axis.tap(NUMPY, y, np.arange(axis.width)[None, :])
        outside = axis.outside(NUMPY, y[:, 0]) if axis.coordinates == "tf_crop_and_resize" else None
    return Table(index, weight, outside if outside is not None and outside.any() else None)


def repeats(axis: Axis) -> int | None:
    """How many times each element of the axis is repeated, where that is all that happens to it."""
    if axis.mode != "nearest" or isinstance(axis.scale, sympy.Basic) or not float(axis.scale).is_integer():
        return None
    count = int(axis.scale)
    if count < 1 or sympy.sympify(axis.extent * count - axis.result) != 0:
        return None
    if isinstance(axis.extent, int):
        plain = np.array_equal(table(axis).index[:, 0], np.arange(axis.result) // count)
    else:  # these do not depend on the extent, and shift with the position: one period shows them all
        period = Axis(2, 2 * count, axis.scale, "nearest", axis.coordinates, axis.rounding)
        plain = axis.coordinates in ("asymmetric", "half_pixel", "half_pixel_symmetric") and repeats(period) == count
    return count if plain else None
