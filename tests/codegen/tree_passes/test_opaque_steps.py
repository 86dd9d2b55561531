"""Distances that are longer than a vector are hidden."""

from __future__ import annotations

import dace
import pytest

from daceopt.codegen.c_tree import text
from daceopt.codegen.names import Names
from daceopt.codegen.tree_passes.opaque_steps import opaque_steps
from tests.codegen.tree_passes.loops import LANE, ROW, load, vector_loop


def test_long_steps_have_a_name() -> None:
    names = Names()
    loop = vector_loop(names)
    loads = [load(names, "v0", "x", (ROW, 1), (LANE, 48)), load(names, "v1", "y", (LANE, 48))]
    before, inside = opaque_steps(loads, loop, names)
    assert text(before) == "const int64_t s0 = dop::opaque(48);"
    assert text(inside) == "const float v0 = p0[i0 + s0 * i1];\nconst float v1 = p1[s0 * i1];"


@pytest.mark.parametrize(("step", "dtype"), [(1, dace.float32), (16, dace.float32), (8, dace.float64)])
def test_steps_within_a_vector_stay(step: int, dtype: dace.typeclass) -> None:
    names = Names()
    loop = vector_loop(names)
    loads = [load(names, "v0", "x", (ROW, 100), (LANE, step), dtype=dtype)]
    assert opaque_steps(loads, loop, names) == ([], loads)
