"""Values before a vector loop, one for each iteration of the unrolled loop inside of it."""

from __future__ import annotations

from daceopt.codegen.c_tree import Assign, Declare, text
from daceopt.codegen.names import Names
from daceopt.codegen.tree_passes.unrolled_values import unrolled_values
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule.schedule import Do, Loop

LOOP = Loop(Parameter("k"), 10, Do(0, ()), "unroll")


def test_what_is_used_inside_is_kept_in_an_array() -> None:
    before = [
        Declare("int64_t", "v0", "p1[i0]", const=True),
        Declare("int64_t", "v1", "dop::index(v0, 50, bad) * 64", const=True, uses=frozenset(["v0"])),
    ]
    inside = [Declare("float", "v2", "p0[v1]", const=True, uses=frozenset(["v1"])), Assign("a0", "v2", "+")]
    outside, body = unrolled_values(before, inside, LOOP, Names())
    assert text(outside) == (
        "int64_t v1_at[10];\n"
        "for (int64_t i0 = 0; i0 < 10; ++i0) {\n"
        "  const int64_t v0 = p1[i0];\n"
        "  const int64_t v1 = dop::index(v0, 50, bad) * 64;\n"
        "  v1_at[i0] = v1;\n"
        "}"
    )
    assert text(body) == "const int64_t v1 = v1_at[i0];\nconst float v2 = p0[v1];\na0 += v2;"


def test_nothing_before_is_nothing_to_keep() -> None:
    inside = [Assign("a0", "v2", "+")]
    assert unrolled_values([], inside, LOOP, Names()) == ([], inside)
