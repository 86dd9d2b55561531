"""Edits on assignment lists, and symbolic tasklets as DaCe nodes."""

from __future__ import annotations

import copy

import dace
import pytest
import sympy

from daceopt.ir.kernel.tasklet import Assignment, SymbolicTasklet, eliminate_dead, free_symbols, fuse, share, substitute
from daceopt.ir.scalar import scalar

F = dace.float32
x, y, u, o = (scalar.symbol(name, F) for name in "xyuo")
TWO = (Assignment(u, sympy.exp(x) + 1, F), Assignment(o, sympy.tanh(sympy.exp(x) * 2) / y, F))


def test_tasklet_is_a_valid_node_and_copies() -> None:
    sdfg = dace.SDFG("one")
    state = sdfg.add_state()
    for name in "xyo":
        sdfg.add_array(name, (1,), F)
    tasklet = SymbolicTasklet("t", {"x": F, "y": F}, TWO, ["o"])
    for name in "xy":
        state.add_edge(state.add_read(name), None, tasklet, name, dace.Memlet(f"{name}[0]"))
    state.add_edge(tasklet, "o", state.add_write("o"), None, dace.Memlet("o[0]"))
    sdfg.validate()
    twin = next(n for n in copy.deepcopy(sdfg).states()[0].nodes() if isinstance(n, SymbolicTasklet))
    assert twin.assignments == TWO
    assert "tanh(2*exp(x))" in twin.code.as_string
    assert '"type": "Tasklet"' in str(sdfg.to_json()).replace("'", '"')


def test_free_symbols_leave_connectors_out() -> None:
    n = scalar.symbol("n", dace.int64)
    tasklet = SymbolicTasklet("t", {"x": F}, [Assignment(o, x * n, F)], ["o"])
    assert tasklet.free_symbols == {"n"}


@pytest.mark.parametrize(
    "assignments", [(TWO[1], Assignment(y, o, F)), (TWO[0], TWO[0]), (Assignment(o, u, F), TWO[0])]
)
def test_assignments_must_be_ssa(assignments) -> None:
    with pytest.raises(ValueError, match="tasklet t"):
        SymbolicTasklet("t", {"x": F, "y": F}, assignments, ["o"])


def test_fusing_renames_collisions() -> None:
    fused, renaming = fuse(TWO, TWO, {x: o})
    assert [str(a.symbol) for a in fused] == ["u", "o", "u_2", "o_2"]
    assert str(renaming[o]) == "o_2"
    assert free_symbols(fused) == {x, y}
    assert fused[2].expr == sympy.exp(o) + 1


def test_dead_assignments_go() -> None:
    assert eliminate_dead(TWO, ["o"]) == TWO[1:]


def test_equal_expressions_are_computed_once() -> None:
    shared = share(TWO, {x: F, y: F}, ["o"])
    assert [str(a) for a in shared] == ["float t = exp(x);", "float u = t + 1;", "float o = tanh(2*t)/y;"]


def test_sharing_does_not_touch_divisors_or_associate() -> None:
    pair = (Assignment(u, (x + 1) / y, F), Assignment(o, (x + 2) / y, F))
    assert share(pair, {x: F, y: F}, ["u", "o"]) == pair


def test_a_repeated_output_becomes_a_copy() -> None:
    pair = (Assignment(u, x + 1, F), Assignment(o, x + 1, F))
    assert share(pair, {x: F}, ["u", "o"]) == (pair[0], Assignment(o, u, F))


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b, c: a - b,
        lambda a, b, c: a / b,
        lambda a, b, c: 2 * a - b,
        lambda a, b, c: a * c - b * c + 1,
        lambda a, b, c: c + (a + 1) / (b + 1),
        lambda a, b, c: sympy.exp(a) * sympy.exp(-b),
    ],
)
def test_symbols_that_become_one_do_not_cancel(make) -> None:
    a, b, c = (scalar.symbol(n, dace.float32) for n in "abc")
    merged = substitute(make(a, b, c), {b: a})
    assert merged == make(a, scalar.apart(a), c)
    assert substitute(merged, {a: c}).has(scalar.apart(c))  # nor later


def test_what_adds_up_is_one() -> None:
    a, b = (scalar.symbol(n, dace.float32) for n in "ab")
    assert substitute(a + b, {b: a}) == 2 * a
    assert substitute(a * b, {b: a}) == a**2


def test_shared_expressions_do_not_cancel() -> None:
    a, y, z = (scalar.symbol(n, dace.float32) for n in "ayz")
    code = (Assignment(y, sympy.sin(a), dace.float32), Assignment(z, sympy.sin(a) * 3 - y, dace.float32))
    assert share(code, {a: dace.float32}, ["y", "z"])[-1].expr == 3 * sympy.sin(a) - y
