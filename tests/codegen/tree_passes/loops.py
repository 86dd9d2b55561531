"""A vector loop inside of another one, and loads in it."""

from __future__ import annotations

import dace

from daceopt.codegen.c_tree import Declare, ElementLoad
from daceopt.codegen.names import Names
from daceopt.ir.access.references import KernelBuffer, Reference
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.symbols import Parameter
from daceopt.ir.schedule.schedule import Do, Loop

ROW, LANE = Parameter("row"), Parameter("lane")


def vector_loop(names: Names, extent: Dim = 64) -> Loop:
    """Lanes of a row: in C ``i1`` inside of ``i0``."""
    loop = Loop(LANE, extent, Do(0, ()), "vector")
    for each in (Loop(ROW, 8, loop), loop):
        names.add_loop(each)
    return loop


def load(
    names: Names, name: str, array: str, *steps: tuple[Parameter, int], dtype: types.DType = dace.float32
) -> Declare:
    """A value of an element of ``array``."""
    reference = Reference(KernelBuffer(array, 0, dtype), steps)
    return Declare("float", name, ElementLoad(names.element(reference), dtype, reference), const=True)
