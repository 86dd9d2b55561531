"""Memlets are those of DaCe, volumes included."""

from __future__ import annotations

from typing import Any

import dace
import pytest
import sympy
from dace.data import Array
from dace.memlet import Memlet

from daceopt.ir import memlets
from daceopt.ir.symbols import size

N, M = size("N"), size("M")


@pytest.mark.parametrize("shape", [(1,), (3, 4, 5), (0, 3), (N,), (2 * N, 3), (N, M - 1, 4), (sympy.Min(64, N), M)])
@pytest.mark.parametrize("wcr", [None, "lambda a, b: a + b"])
def test_a_whole_array(shape: tuple[Any, ...], wcr: str | None) -> None:
    desc = Array(dace.float32, shape)
    mine, theirs = memlets.whole("a", desc, wcr), Memlet.from_array("a", desc, wcr)
    assert sympy.expand(mine.volume - theirs.volume) == 0
    theirs.volume = mine.volume
    assert _attributes(mine) == _attributes(theirs)


def _attributes(memlet: Memlet) -> dict[str, Any]:
    return {name: value for name, value in memlet.to_json()["attributes"].items() if name != "guid"}


@pytest.mark.parametrize("extents", [(), (3,), (N, 4)])
def test_the_volume_of_a_box(extents: tuple[Any, ...]) -> None:
    assert memlets.volume(extents) == sympy.prod(extents)
