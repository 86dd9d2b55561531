"""Scalar expressions as text, or as what passes look into."""

from __future__ import annotations

import dace
import sympy

from daceopt.codegen.c_tree import ElementLoad, Name, ScalarValue
from daceopt.codegen.lookups import Lookups
from daceopt.codegen.names import Names
from daceopt.ir.access.references import KernelBuffer, Reference
from daceopt.ir.scalar import scalar, types

HALF = types.from_name("float16")
X, TABLE = (scalar.symbol(name, dace.float32) for name in ("x", "table"))
PLACE = sympy.Symbol("place", integer=True)


def lookups() -> Lookups:
    table = Reference(KernelBuffer("t", 0, HALF), (), whole=((50, 64),))
    return Lookups(Names(), dict.fromkeys((X, TABLE), dace.float32), {TABLE: table})


def test_a_value_and_a_cast_to_its_type_are_its_name() -> None:
    for expr in (X, scalar.cast(X, dace.float32)):
        assert lookups().lower(ScalarValue(expr, dace.float32)) == Name("x")
    assert lookups().lower(ScalarValue(X, dace.float64)) == "double(x)"
    assert lookups().lower(ScalarValue(X * X, dace.float32)) == "dop::ipow<2>(x)"


def test_an_element_is_a_load_whose_place_is_checked_unless_a_variable_has_it() -> None:
    load, printer = scalar.load(TABLE, PLACE), lookups()
    assert printer.lower(ScalarValue(load, dace.float32, places={(load, 0): "v0"})) == ElementLoad("p0[v0]", HALF)
    assert not printer.checks
    checked = ElementLoad("p0[dop::index(place, 50, bad) * 64]", HALF)
    assert printer.lower(ScalarValue(load, dace.float32)) == checked and printer.checks
