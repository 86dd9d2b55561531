"""What all lanes have in common stands before their loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dace
import sympy

from daceopt.codegen.c_tree import Declare, ScalarValue, Statement, text
from daceopt.codegen.lookups import Lookups
from daceopt.codegen.names import Names
from daceopt.codegen.tree_passes.invariant_code import InvariantCode
from daceopt.ir.access.references import KernelBuffer, Reference
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim
from tests.codegen.tree_passes.loops import LANE, ROW, load, vector_loop

F = dace.float32


def apart(expr: Any, extent: Dim = 64, written: Sequence[str] = (), dtype: types.DType = F) -> tuple[str, str]:
    """``v2``, an expression of ``v0``, an element of a row, ``v1``, one of a lane, and ``v3``, an array that is looked
    up: what stands before the loop, and what inside."""
    names = Names()
    loop = vector_loop(names, extent)
    v0, v1, v2, v3 = (names.value(F) for _ in range(4))
    values, arrays = dict.fromkeys((v0, v1, v2, v3), F), {v3: Reference(KernelBuffer("t", 0, F), (), whole=((50, 64),))}
    value = Declare(types.cpp(dtype), "v2", ScalarValue(expr(v0, v1, v3), dtype), const=True)
    statements = [load(names, "v0", "x", (ROW, 1)), load(names, "v1", "y", (ROW, 64), (LANE, 1)), value]
    lookups = Lookups(names, values, arrays)
    code, first = InvariantCode(names, loop, values, {}, lookups, written).run(statements)
    lowered = [replace(s, value=lookups.lower(s.value)) for s in code if isinstance(s, Declare)]

    def among(is_first: bool) -> list[Statement]:
        return [s for s in lowered if (s.name in first) is is_first]

    return text(among(True)), text(among(False))


def test_elements_and_calls() -> None:
    before, inside = apart(lambda row, lane, _: lane - sympy.log(row))
    assert before == "const float v0 = p0[i0];\nconst float v4 = logf(v0);"
    assert inside == "const float v1 = p1[64 * i0 + i1];\nconst float v2 = (v1 - v4);"


def test_calls_of_lanes_stay() -> None:
    before, inside = apart(lambda row, lane, _: row - sympy.log(lane))
    assert before == "const float v0 = p0[i0];" and "const float v2 = (v0 - logf(v1));" in inside


def test_conditions_are_masks() -> None:
    before, inside = apart(lambda row, lane, _: scalar.select(scalar.gt(row, 0), lane, 1))
    assert before.endswith("const dop::Mask v4 = (v0 > 0.0f);") and "dop::select(v4, v1, 1.0f)" in inside


def test_positions_are_checked_once() -> None:
    def looked_up(row: Any, lane: Any, table: Any) -> Any:
        return lane + scalar.load(table, scalar.cast(row, dace.int64))

    before, inside = apart(looked_up)
    assert before.endswith("const int64_t v4 = dop::index(int64_t(v0), 50, bad) * 64;")
    assert "p2[v4]" in inside and "bad" not in inside


def test_of_a_loop_that_may_be_empty_only_elements_move() -> None:
    before, inside = apart(lambda row, lane, _: lane - sympy.log(row), sympy.Symbol("n", integer=True))
    assert before == "const float v0 = n0 > 0 ? p0[i0] : float(0);" and "logf(v0)" in inside


def test_what_is_written_stays() -> None:
    before, inside = apart(lambda row, lane, _: lane - sympy.log(row), written=["x"])
    assert not before and "const float v0 = p0[i0];" in inside
