"""Images sampled at positions computed at run time, as PyTorch's kernels do it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy

from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import scalar, types

_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


@translates("grid_sampler_2d", "grid_sampler_3d", derivative="aten")
def grid_sampler(
    t: Translation, input: str, grid: str, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> str:
    """GridSample; at bounds, gradients are PyTorch's own."""
    if not types.is_float(t.dtype) or 0 in (*t.shape_of(input), *t.shape):
        raise Unsupported(f"sampling {types.name_of(t.dtype)}{list(t.shape_of(input))}; expected floats, and elements")
    if not all(isinstance(n, int) for n in t.shape_of(input)[2:]):
        raise Unsupported(f"sampling an image of {t.shape_of(input)[2:]}; expected known extents")
    mode, padding = _MODES[interpolation_mode], _PADDINGS[padding_mode]
    if mode == "cubic" and padding != "zeros":
        raise Unsupported(f"cubic sampling with padding {padding}: each tap is brought inside by itself")
    options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": int(align_corners)}
    y = t.operator("GridSample", input, grid, **options)
    return _unknown(t, y, grid) if padding == "zeros" and mode != "nearest" else y


def _unknown(t: Translation, y: str, grid: str) -> str:
    """NaN where a coordinate is none: weights of such positions are NaN, and no padding hides them. Which positions are
    of this kind is the same for all channels."""
    rank, places = len(t.shape) - 2, (t.shape[0], *t.shape[2:])
    nan_mark = t.graph.add_array("known", places, types.compute_type(t.dtype))
    reads: dict[str, Any] = {f"g{k}": (grid, lambda *i, k=k: (*i, k)) for k in range(rank)}
    t.b.map(places, reads, {"out": (nan_mark, lambda *i: i)}, lambda i, **at: _one_or_nan(at.values()))
    out = t.graph.add_array(t.label, t.shape, t.dtype)
    reads = {"nan_mark": (nan_mark, lambda *i: (i[0], *i[2:])), "y": (y, lambda *i: i)}
    chosen = lambda i, nan_mark, y: scalar.select(scalar.isnan(nan_mark), scalar.nan(), y)  # noqa: E731
    t.b.map(t.shape, reads, {"out": (out, lambda *i: i)}, chosen)
    return str(out)


def _one_or_nan(coordinates: Iterable[object]) -> sympy.Expr:
    factor: Any = sympy.Float(1)
    for g in coordinates:
        factor = scalar.select(scalar.logical_or(scalar.isnan(g), scalar.isinf(g)), scalar.nan(), factor)
    return factor
