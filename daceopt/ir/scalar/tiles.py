"""Extents of loops over tiles, of which the last one may be partial."""

from __future__ import annotations

from typing import Any

import sympy

from daceopt.ir.scalar.dims import Dim, dim


def blocks(extent: Dim, size: int) -> Dim:
    """The number of tiles of ``size`` that cover ``extent``."""
    return -(-extent // size) if isinstance(extent, int) else dim(sympy.floor((extent + size - 1) / size))


def tile_extent(extent: Dim, size: int, block: Any) -> Dim:
    """The extent of tile number ``block``: what ``Kernel.bounds`` takes apart."""
    if isinstance(extent, int) and extent % size == 0:
        return size
    return sympy.Min(size, extent - size * block, evaluate=False)
