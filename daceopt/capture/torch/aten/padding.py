"""Padding, and the parts of a tensor that windows see."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

from daceopt.capture.torch.calls import Number
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.families.bordering import MOST_REPEATED


@translates("constant_pad_nd")
def constant_pad(t: Translation, self: str, pad: list[Dim], value: Number) -> str:
    """``pad`` speaks of the last axis first: what is added before and after it, or removed."""
    pads = _pads(t, self, pad)
    if not any(pad):
        return self
    fill = t.b.constant(np.asarray(value).astype(types.to_numpy(t.dtype)))
    return t.operator("Pad", self, t.integers(pads), fill, mode="constant")


@translates("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(t: Translation, self: str, padding: list[Dim]) -> str:
    """PyTorch has refused padding that is not shorter than its axis."""
    return _pad_by_border(t, self, _pads_of(t, self, padding), "reflect")


@translates("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(t: Translation, self: str, padding: list[Dim]) -> str:
    pads = _pads_of(t, self, padding)
    if max(pads) <= MOST_REPEATED:
        return _pad_by_border(t, self, pads, "edge")
    return t.operator("Pad", self, t.integers(pads), mode="edge")


@translates("_pad_circular")
def circular_pad(t: Translation, self: str, pad: list[Dim]) -> str:
    """Negative padding removes elements, before others go on at their other end."""
    pads, rank = _pads(t, self, pad), len(t.shape)
    starts = [max(-p, 0) for p in pads[:rank]]
    ends = [dim(n - max(-p, 0)) for n, p in zip(t.shape_of(self), pads[rank:])]
    cropped, added = t.b.slice(self, starts, ends), [max(p, 0) for p in pads]
    if any(p < 0 for p in pads) and not _holds(t.shape_of(cropped), added):
        raise Unsupported("padding by more elements than are left")
    return _pad_by_border(t, cropped, added, "wrap")


def _holds(shape: Any, added: list[int]) -> bool:
    """Does an array of this shape surely have as many elements along each axis as are added on either side?"""
    return all(isinstance(n, int) and n >= p for p, n in zip(added, (*shape, *shape)) if p)


def _pad_by_border(t: Translation, name: str, pads: list[int], mode: str) -> str:
    return t.operator("BorderPad", name, begins=pads[: len(t.shape)], mode=mode, domain="daceopt")


def _pads_of(t: Translation, name: str, padding: list[Dim]) -> list[int]:
    pads = _pads(t, name, padding)
    if any(p < 0 for p in pads):
        raise Unsupported("negative padding: ATen pads with what it cropped, ONNX with what is left")
    return pads


def _pads(t: Translation, name: str, pad: list[Dim]) -> list[int]:
    """As ONNX has them: before each axis, then after each."""
    if not all(isinstance(p, int) for p in pad):
        raise Unsupported(f"padding by {pad}; expected numbers")
    if 0 in t.shape_of(name):
        raise Unsupported("padding of a tensor without elements")
    axes = len(pad) // 2
    rest = [0] * (len(t.shape) - axes)
    return [*rest, *pad[0::2][::-1], *rest, *pad[1::2][::-1]]


# -------------------------------------------------------------------- columns of windows


class _Windows:
    """The windows of an image: how often each of two axes is cut, and where element (a, b) of a window is."""

    def __init__(self, kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> None:
        sizes = [*kernel, *dilation, *padding, *stride]
        if not all(isinstance(n, int) for n in sizes):
            raise Unsupported("windows whose size is symbolic")
        self.kernel, self.dilation, self.padding, self.stride = kernel, dilation, padding, stride

    def counts(self, extents: Any) -> list[Any]:
        """Windows along each axis of an image."""
        return [
            dim((n + 2 * p - d * (k - 1) - 1) // s + 1)
            for n, k, d, p, s in zip(extents, self.kernel, self.dilation, self.padding, self.stride)
        ]

    def place(self, axis: int, window: Any, element: Any) -> sympy.Expr:
        """The position in the image."""
        return window * self.stride[axis] + element * self.dilation[axis] - self.padding[axis]


def _inside(place: sympy.Expr, extent: sympy.Expr) -> sympy.Expr:
    return scalar.logical_and(scalar.ge(place, 0), scalar.lt(place, extent))


@translates("im2col", derivative="aten")
def im2col(
    t: Translation, self: str, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> str:
    """out[n, (c, a, b), (h, w)] = image[n, c, place(h, a), place(w, b)], zero outside."""
    windows = _Windows(kernel_size, dilation, padding, stride)
    if 0 in t.shape or 0 in t.shape_of(self):
        raise Unsupported("windows of a tensor without elements")
    batch, (channels, *extents) = t.shape_of(self)[:-3], t.shape_of(self)[-3:]
    counts = windows.counts(extents)
    out = t.graph.add_array("columns", (*batch, channels, *kernel_size, *counts), t.dtype)
    lead = len(batch) + 1

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr) -> sympy.Expr:
        a, b, h, w = i[lead:]
        places = [windows.place(0, h, a), windows.place(1, w, b)]
        near = [scalar.clamp(p, n) for p, n in zip(places, extents)]
        value = scalar.load(x, *i[:lead], *near)
        inside = scalar.logical_and(_inside(places[0], extents[0]), _inside(places[1], extents[1]))
        return scalar.select(inside, value, 0)

    whole = (None,) * (lead + 2)
    shape = t.shape_of(out)
    t.b.map(shape, {"x": (self, lambda *i: whole)}, {"out": (out, lambda *i: i)}, element, label="im2col")
    return t.reshape(out, t.shape)


@translates("col2im", derivative="aten")
def col2im(
    t: Translation,
    self: str,
    output_size: list[Any],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> str:
    """Each pixel sums the windows' elements that stand on it."""
    windows = _Windows(kernel_size, dilation, padding, stride)
    if 0 in t.shape or 0 in t.shape_of(self):
        raise Unsupported("windows of a tensor without elements")
    batch, (channels, *extents) = t.shape[:-3], t.shape[-3:]
    counts = windows.counts(extents)
    columns = t.reshape(self, (*batch, channels, *kernel_size, *counts))
    wide = t.graph.add_array("pixels", t.shape, types.compute_type(t.dtype))
    lead = len(batch) + 1

    def element(i: tuple[sympy.Symbol, ...], x: sympy.Expr) -> sympy.Expr:
        near: list[Any] = []
        there: Any = None
        for axis in range(2):
            ahead = i[lead + axis] + padding[axis] - i[lead + 2 + axis] * dilation[axis]
            window = scalar.idiv(ahead, stride[axis])
            fits = scalar.logical_and(scalar.ge(ahead, 0), scalar.lt(window, counts[axis]))
            fits = scalar.logical_and(fits, scalar.eq(scalar.pymod(ahead, stride[axis]), 0))
            there = fits if there is None else scalar.logical_and(there, fits)
            near.append(scalar.clamp(window, counts[axis]))
        return scalar.select(there, scalar.load(x, *i[:lead], *i[lead + 2 :], *near), 0)

    whole = (None,) * (lead + 4)
    domain = (*t.shape, *kernel_size)
    writes = {"out": (wide, lambda *i: i[: lead + 2], "sum")}
    t.b.map(domain, {"x": (columns, lambda *i: whole)}, writes, element, label="col2im")
    return t.cast(wide, t.dtype)
