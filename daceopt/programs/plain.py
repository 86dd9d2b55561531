"""Graphs of daceopt as SDFGs that plain DaCe validates, saves, loads, compiles and runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from daceopt.programs.sdfg_view import show_in_notebooks

if TYPE_CHECKING:
    import dace

    from daceopt.ir.graph.graph import Graph


@dataclass(frozen=True)
class PlainSdfg:
    """``sdfg``, and the constants that it takes as arguments because they are too large for its code, by name."""

    sdfg: dace.SDFG
    constants: dict[str, np.ndarray]


def plain(graph: Graph) -> PlainSdfg:
    """``graph`` in DaCe's own words: maps, tasklets of C++, states and loops, with all code that they call.

    What is loaded from a file of it needs DaCe and a C++ compiler, nothing else. It computes the same in plain loops;
    schedules and libraries stay behind. Arrays have the graph's names and layouts, the narrow types of storage are
    unsigned integers of their size. Where a check fails (an index out of range), the process ends with a message.
    A program for a device becomes one for the host. Raises Unsupported for what calls Python (host calls), other ranks,
    or what only libraries of a device have.
    """
    from daceopt import libs, ops
    from daceopt.codegen.plain_frame import PlainFrame
    from daceopt.ir.control import region, region_settling

    lowered = graph.copy()
    for part in region.everything(lowered):  # whatever it was made for
        part.options = replace(part.options, target="cpu")
    ops.lower_all(lowered)
    region_settling.settle(lowered)
    support = libs.plain.implement_plain(lowered)
    frame = PlainFrame(lowered, support)
    sdfg = show_in_notebooks(frame.sdfg)
    return PlainSdfg(sdfg, {n: v for n, v in frame.arguments.items() if n in sdfg.arrays})
