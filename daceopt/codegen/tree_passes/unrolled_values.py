"""What comes before a vector loop around an unrolled one: one value for each iteration of that, in arrays.

before:  v0 = p0[i1]; | for i2: unrolled for i1: a0[i1] += v0 * p1[64 * i1 + i2]
after:   float v0_at[10]; for i1: v0 = p0[i1]; v0_at[i1] = v0; |
         for i2: unrolled for i1: v0 = v0_at[i1]; a0[i1] += v0 * p1[64 * i1 + i2]

gcc keeps the arrays in registers, as the loop that reads them is unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence

from daceopt.codegen.c_tree import Assign, Declare, For, Statement, Together
from daceopt.codegen.names import Names
from daceopt.ir.schedule.schedule import Loop


def unrolled_values(
    before: Sequence[Declare], inside: Sequence[Statement], loop: Loop, names: Names
) -> tuple[list[Statement], list[Statement]]:
    """What comes before, for each iteration of the unrolled ``loop``, and what is inside of that."""
    if not before:
        return [], list(inside)
    counter, extent = names.loop(loop.param), str(loop.extent)
    used = {name for s in inside for name in _uses(s)}
    values = [s for s in before if s.name in used]
    arrays = [Declare(s.type, f"{s.name}_at", size=extent) for s in values]
    stores = [Assign(f"{s.name}_at[{counter}]", s.name) for s in values]
    loads = [Declare(s.type, s.name, f"{s.name}_at[{counter}]", const=True) for s in values]
    return [*arrays, For(counter, extent, (*before, *stores))], [*loads, *inside]


def _uses(s: Statement) -> frozenset[str]:
    if isinstance(s, Together):
        return frozenset().union(*(part.uses for part in s.parts))
    return s.uses if isinstance(s, Declare | Assign) else frozenset()
