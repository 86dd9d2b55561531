"""Memlets whose volume is known: DaCe finds it by symbolic arithmetic on the bounds of their ranges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import sympy
from dace.memlet import Memlet
from dace.subsets import Range

if TYPE_CHECKING:
    from dace.data import Data


def whole(name: str, desc: Data, wcr: str | None = None) -> Memlet:
    """All elements of the array ``name``."""
    return Memlet(data=name, subset=Range.from_array(desc), volume=volume(desc.shape), wcr=wcr)


def volume(extents: Iterable[Any]) -> sympy.Expr:
    """How many elements a box has."""
    return sympy.Mul(*extents)
