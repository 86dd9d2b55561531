"""Programs compiled together: each as right as alone, and none harmed by another."""

from __future__ import annotations

import dataclasses

import dace
import numpy as np
import pytest
import torch

from daceopt import libs
from daceopt.codegen.bundle import Bundle, BundledProgram
from daceopt.errors import BuildError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.runtime.executable import Executable, TimedExecutable
from daceopt.runtime.invocation import ExecutableEntry


def scaled(bundle: Bundle, factor: float, dtype: dace.typeclass = dace.float32) -> BundledProgram:
    """x * factor + constant, for vectors of any length."""
    graph = Graph("program")
    size = dace.symbolic.symbol("s0", dace.int64)
    x = graph.add_input("x", (size,), dtype)
    graph.symbols["s0"] = (x, 0)
    one = graph.add_constant("one", np.ones(1, np.dtype(dtype.type)))
    b = Builder(graph)
    graph.add_output(b.elementwise(lambda v, c: v * factor + c, x, one))
    roles = {x: "input:0", graph.outputs[0]: "output:0"}
    return bundle.add(graph, roles, libs.implement)


def run(program: Executable, x: torch.Tensor) -> torch.Tensor:
    entry = ExecutableEntry(program)
    memory = entry.memory((len(x),))
    outputs = memory.allocate()
    entry.invoke([x.data_ptr()], outputs, None, None, (len(x),), memory.arena)
    return outputs[0]


def test_programs_of_one_bundle() -> None:
    bundle = Bundle()
    factors = {2.0: dace.float32, 3.0: dace.int8, 4.0: dace.uint32, 5.0: dace.float32}
    programs = {f: scaled(bundle, int(f) if t != dace.float32 else f, t) for f, t in factors.items()}
    for factor, program in programs.items():
        x = torch.arange(5).to(getattr(torch, program.manifest.inputs[0].dtype))
        assert run(program, x).tolist() == (np.arange(5) * factor + 1).tolist()
    assert len({id(p.outcome.run) for p in programs.values()}) == 4
    assert run(scaled(bundle, 6.0), torch.ones(2)).tolist() == [7, 7], "a bundle goes on after it was built"
    timed = TimedExecutable(programs[2.0])
    assert run(timed, torch.ones(2)).tolist() == [3, 3] and timed.seconds and timed.source() == programs[2.0].source()


def test_one_that_does_not_compile_harms_no_other() -> None:
    bundle = Bundle()
    good, bad, last = (scaled(bundle, f) for f in (2.0, 3.0, 4.0))
    bad.jobs = tuple(dataclasses.replace(j, source="no C++" if j.kind == "frame" else j.source) for j in bad.jobs)
    assert run(good, torch.ones(1)).item() == 3 and run(last, torch.ones(1)).item() == 5
    with pytest.raises(BuildError, match="rejected frame"):
        bad.sizes((1,))
