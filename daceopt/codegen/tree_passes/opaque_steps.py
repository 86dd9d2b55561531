"""Distances between the elements that a vector loop loads, hidden from the compiler.

before:  for i1: v0 = p0[i0 + 48 * i1]; v1 = tanh(v0)
after:   s0 = dop::opaque(48); for i1: v0 = p0[i0 + s0 * i1]; v1 = tanh(v0)

gcc 12 looks for what is between elements at a known distance longer than a vector, and gives up on the loop; those
at an unknown one it loads one by one, and computes with vectors. Where computing costs less than loads, neither pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daceopt.codegen.c_tree import Declare, ElementLoad, Statement
from daceopt.codegen.names import Names
from daceopt.ir.schedule.schedule import Loop

_VECTOR_BYTES = 64  # of the widest vectors


def opaque_steps(statements: Sequence[Statement], loop: Loop, names: Names) -> tuple[list[Statement], list[Statement]]:
    """What is before the vector loop ``loop``, and its ``statements`` with loads by these steps."""
    steps: dict[int, str] = {}  # along ``loop`` -> its name
    inside = [_stepping(s, loop, names, steps) for s in statements]
    return [Declare("int64_t", name, f"dop::opaque({n})", const=True) for n, name in steps.items()], inside


def _stepping(statement: Statement, loop: Loop, names: Names, steps: dict[int, str]) -> Statement:
    if not isinstance(statement, Declare) or not isinstance(statement.value, ElementLoad):
        return statement
    reference = statement.value.reference
    step = None if reference is None else reference.step(loop.param)
    if reference is None or not isinstance(step, int) or abs(step) * reference.buffer.dtype.bytes <= _VECTOR_BYTES:
        return statement
    steps[step] = steps.get(step) or names.step()
    return replace(
        statement, value=replace(statement.value, element=names.element(reference, {loop.param: steps[step]}))
    )
