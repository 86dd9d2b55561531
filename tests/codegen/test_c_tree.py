"""Statements of C and their text."""

from __future__ import annotations

import dace
import pytest
import sympy

from daceopt.codegen.c_tree import (
    Assign,
    Compound,
    Declare,
    ElementLoad,
    Expression,
    For,
    If,
    Name,
    Pragma,
    ScalarValue,
    Stored,
    Together,
    expression,
    text,
)
from daceopt.ir.scalar import scalar, types

HALF = types.from_name("float16")


def test_statements_are_lines() -> None:
    body = (Declare("float", "v0", ElementLoad("p0[i0]", HALF), const=True), Assign("p1[i0]", Stored(Name("v0"), HALF)))
    noted = Together((Assign("a0", "v0"), Assign("a0_nan", "v0 != v0", "|")))
    fill = For("j", "8", Assign("l0[j]", "float(0)"))
    loop = For("i0", "n0", (If("i0 < 4", body, (noted,)),))
    report = If("bad", Expression("abort()"))
    assert text([Declare("float", "l0", size="8"), fill, Pragma("omp simd"), loop, Compound((report,))], 1) == (
        "  float l0[8];\n"
        "  for (int64_t j = 0; j < 8; ++j) l0[j] = float(0);\n"
        "  #pragma omp simd\n"
        "  for (int64_t i0 = 0; i0 < n0; ++i0) {\n"
        "    if (i0 < 4) {\n"
        "      const float v0 = dop::float16::load(p0[i0]);\n"
        "      p1[i0] = dop::float16::store(v0);\n"
        "    } else {\n"
        "      a0 = v0; a0_nan |= v0 != v0;\n"
        "    }\n"
        "  }\n"
        "  {\n"
        "    if (bad) abort();\n"
        "  }"
    )


def test_elements_have_the_form_of_their_type() -> None:
    assert expression(ElementLoad("p0[0]", dace.float32)) == "p0[0]" and expression(Stored("x", dace.float32)) == "x"
    assert expression(ElementLoad("p0[0]", dace.bool_)) == "dop::truth(p0[0])"


def test_scalar_expressions_are_printed_before() -> None:
    x, y = (scalar.symbol(name, dace.float32) for name in "xy")
    value = ScalarValue(sympy.log(x) + y, dace.float32, {sympy.log(x): "v0"})
    assert value.uses == {"v0", "y"}
    with pytest.raises(TypeError, match="ScalarValue is no text yet"):
        expression(value)
