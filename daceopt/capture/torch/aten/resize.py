"""Interpolation: weighted taps along each axis, which PyTorch's own operators tell when a graph is imported."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from daceopt.capture.torch.aten.reduction import reduce
from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation
from daceopt.errors import Unsupported
from daceopt.ir.scalar import types
from daceopt.ir.scalar.affine import quotient
from daceopt.ir.scalar.dims import Dim
from daceopt.ops.families import taps
from daceopt.ops.families.interpolation import Table
from daceopt.torch_internals.modes import without_modes

_aten = torch.ops.aten
_LARGEST = 2**24  # elements of a matrix that is made to see the taps of an axis

_FORWARD = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
_BACKWARD = tuple(f"{name}_backward" for name in _FORWARD)


@translates(*_FORWARD)
def upsample(
    t: Translation, self: str, output_size: Sequence[Dim], align_corners: bool = False, **scales: float | None
) -> str:
    return _resize(t, self, align_corners, list(scales.values()))


@translates(*(f"{name}.vec" for name in _FORWARD))
def upsample_by_factors(
    t: Translation,
    input: str,
    output_size: object,
    scale_factors: Sequence[float] | None,
    align_corners: bool = False,
) -> str:
    rank = len(t.shape) - 2
    factors = [None] * rank if scale_factors is None else list(scale_factors)
    return _resize(t, input, align_corners, factors)


def _resize(t: Translation, x: str, align_corners: bool, scales: Sequence[object]) -> str:
    counts = _repetitions(t.label, t.shape_of(x)[2:], t.shape[2:], scales)
    if counts is None:
        return apply_tables(t, x, _tables(t, x, t.shape_of(x), t.shape, align_corners, scales))
    before = t.shape_of(x)
    ones = [1] * len(counts)
    wide = t.expand(t.reshape(x, _interleave(before, ones)), _interleave(before, counts))
    return t.reshape(wide, t.shape)


def _repetitions(label: str, before: Sequence[Dim], after: Sequence[Dim], scales: Sequence[object]) -> list[int] | None:
    """How often each element of these axes is repeated, where that is all, and their extents are open: tables tell of
    known ones. PyTorch finds positions in float32, which has powers of two exactly."""
    if _filter_of(label) not in ("nearest", "exact") or all(isinstance(n, int) for n in (*before, *after)):
        return None
    counts = []
    for n, m, scale in zip(before, after, scales, strict=True):
        count = quotient(m, n)
        if not isinstance(count, int) or count.bit_count() != 1 or scale not in (None, count):
            return None
        counts.append(count)
    return counts


def _interleave(shape: Sequence[Dim], counts: Sequence[int]) -> tuple[Dim, ...]:
    """``shape`` with one of ``counts`` behind each of its last extents."""
    lead = len(shape) - len(counts)
    return (*shape[:lead], *(v for pair in zip(shape[lead:], counts, strict=True) for v in pair))


@translates(*_BACKWARD, derivative="aten")
def upsample_backward(
    t: Translation,
    grad_output: str,
    output_size: Sequence[Dim],
    input_size: Sequence[object],
    align_corners: bool = False,
    **scales: float | None,
) -> str:
    own = t.shape_of(grad_output)
    counts = _repetitions(t.label.removesuffix("_backward"), t.shape[2:], own[2:], list(scales.values()))
    if counts is not None:
        wide = t.reshape(grad_output, _interleave(t.shape, counts))
        return reduce(t, "ReduceSum", wide, [3 + 2 * k for k in range(len(counts))], False)
    tables = _tables(t, grad_output, t.shape, own, align_corners, list(scales.values()))
    return apply_tables(t, grad_output, [None if x is None else x.transpose(n) for x, n in zip(tables, t.shape[2:])])


def apply_tables(t: Translation, x: str, tables: Sequence[Table | None]) -> str:
    """The tables along the last axes of ``x``; None leaves an axis as it is."""
    lead = len(t.shape) - len(tables)
    present = {lead + k: table for k, table in enumerate(tables) if table is not None}
    if not present:
        return x
    return t.operator("Taps", x, domain=taps.DOMAIN, **taps.attributes(present))


def _tables(
    t: Translation,
    x: str,
    before: Sequence[Dim],
    after: Sequence[Dim],
    align_corners: bool,
    scales: Sequence[Any],
) -> list[Table | None]:
    kind, dtype = _filter_of(t.label), t.dtype_of(x)
    if 0 in (*before, *after) or not all(isinstance(n, int) for n in (*before[2:], *after[2:])):
        raise Unsupported(f"resizing from {before} to {after}; expected spatial extents that are known and not 0")
    if kind not in ("nearest", "exact") and not types.is_float(dtype):
        raise Unsupported(f"interpolation over {types.name_of(dtype)}; supported are floats")
    if not all(s is None or isinstance(s, (int, float)) for s in scales):
        raise Unsupported("a scale that depends on a size")
    # indices are found in the type in which PyTorch computes them; weights are as exact as can be
    wide = types.name_of(dtype) == "float64" or kind not in ("nearest", "exact")
    tables = []
    for n, m, scale in zip(before[2:], after[2:], scales, strict=True):
        tables.append(_table(kind, wide, int(n), int(m), bool(align_corners), None if scale is None else float(scale)))
    return tables


def _filter_of(label: str) -> str:
    name = label.removesuffix("_backward")
    if name.endswith("_aa"):
        return "cubic_aa" if "cubic" in name else "linear_aa"
    kinds = {"nearest_exact": "exact", "nearest": "nearest", "cubic": "cubic"}
    return next((kind for part, kind in kinds.items() if part in name), "linear")


@lru_cache(256)
def _table(kind: str, wide: bool, extent: int, result: int, align_corners: bool, scale: float | None) -> Table | None:
    """Which elements an operator takes along one axis, seen by what it makes of an identity matrix."""
    if extent * max(extent, result) > _LARGEST:
        raise Unsupported(f"resizing an axis from {extent} to {result}: too long to see its taps")
    with without_modes(), torch.no_grad():
        one = torch.eye(extent, dtype=torch.float64 if wide else torch.float32, device="cpu")[None]
        matrix = _resize_tensor(kind, one, result, align_corners, scale)[0].double().numpy()
    return _from_matrix(matrix, whole=kind in ("nearest", "exact"))


def _resize_tensor(kind: str, x: torch.Tensor, result: int, align_corners: bool, scale: float | None) -> torch.Tensor:
    if kind in ("nearest", "exact"):
        function = _aten.upsample_nearest1d if kind == "nearest" else _aten._upsample_nearest_exact1d
        return function(x, [result], scale)
    if kind == "linear":
        return _aten.upsample_linear1d(x, [result], align_corners, scale)
    plane = {
        "cubic": "upsample_bicubic2d",
        "cubic_aa": "_upsample_bicubic2d_aa",
        "linear_aa": "_upsample_bilinear2d_aa",
    }
    return getattr(_aten, plane[kind])(x[:, :, None], [1, result], align_corners, None, scale)[:, :, 0]


def _from_matrix(matrix: np.ndarray, whole: bool) -> Table | None:
    """The taps of a matrix [extent, result]; None where it is the identity."""
    extent, result = matrix.shape
    if extent == result and np.array_equal(matrix, np.eye(extent)):
        return None
    order = np.argsort(matrix == 0, axis=0, kind="stable")
    width = max(int((matrix != 0).sum(axis=0).max()), 1)
    index = order[:width].T.astype(np.int64)
    weight = np.take_along_axis(matrix, order[:width], axis=0).T
    index = np.where(weight != 0, index, index[:, :1])
    return Table(index, None if whole else weight, None)
