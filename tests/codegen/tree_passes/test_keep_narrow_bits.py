"""Elements that are only moved keep their bits."""

from __future__ import annotations

import pytest

from daceopt.codegen.c_tree import Assign, Declare, ElementLoad, Name, Statement, Stored, text
from daceopt.codegen.tree_passes.keep_narrow_bits import keep_narrow_bits
from daceopt.ir.scalar import types

HALF, OTHER, WIDE = map(types.from_name, ("float16", "bfloat16", "float32"))


def moved(source: types.DType, target: types.DType) -> list[Statement]:
    return [
        Declare("float", "v0", ElementLoad("p0[i0]", source), const=True),
        Declare("float", "v1", Name("v0"), const=True),
        Assign("p1[i0]", Stored(Name("v1"), target)),
        Assign("p2[i0]", Stored(Name("v0"), target)),
    ]


def test_bits_are_stored_of_copies_too() -> None:
    assert text(keep_narrow_bits(moved(HALF, HALF))) == (
        "const float v0 = dop::float16::load(p0[i0]);\n"
        "const auto v0_bits = p0[i0];\n"
        "const float v1 = v0;\n"
        "p1[i0] = v0_bits;\n"
        "p2[i0] = v0_bits;"
    )


@pytest.mark.parametrize(("source", "target"), [(HALF, OTHER), (HALF, WIDE), (WIDE, HALF), (WIDE, WIDE)])
def test_other_types_are_converted(source: types.DType, target: types.DType) -> None:
    assert keep_narrow_bits(moved(source, target)) == moved(source, target)


def test_what_is_computed_is_converted() -> None:
    statements = [Declare("float", "v0", "v2 * v3", const=True), Assign("p1[i0]", Stored(Name("v0"), HALF))]
    assert keep_narrow_bits(statements) == statements
    elsewhere = [Assign("p1[i0]", Stored(Name("v0"), HALF))]  # before the loop, say
    assert keep_narrow_bits(elsewhere) == elsewhere
