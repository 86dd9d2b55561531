"""A value that is rounded only to be stored is rounded once."""

from __future__ import annotations

import dace
import pytest

from daceopt.codegen.names import Names
from daceopt.codegen.tree_passes.rounding_stores import stored_value
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar, types

HALF, EIGHTH = types.from_name("float16"), types.from_name("float8_e4m3fn")


@pytest.mark.parametrize(("cast_to", "kept_as"), [(HALF, HALF), (EIGHTH, EIGHTH), (EIGHTH, HALF)])
def test_what_a_half_is_rounded_from_is_stored(cast_to: types.DType, kept_as: types.DType) -> None:
    names = Names()
    x, y = names.value(dace.float32), names.value(dace.float32)
    values = dict.fromkeys((x, y), dace.float32)
    code = [Assignment(y, scalar.cast(x * x, cast_to), dace.float32)]
    stored = stored_value(y, kept_as, code, values, names)
    if (cast_to, kept_as) == (HALF, HALF):
        assert code == [Assignment(stored, x * x, dace.float32), Assignment(y, scalar.cast(stored, HALF), dace.float32)]
        assert values[stored] == dace.float32
    else:  # beyond the range of eight bits storing is no cast
        assert stored == y and len(code) == 1
