"""Programs with a stream take the time between their nodes by events, those of the emulation here."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import libs, recipes
from daceopt.codegen import build, trial
from daceopt.codegen.assemble import load_program
from daceopt.ir.control.imported import Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.programs import derivation
from daceopt.runtime import device_graphs
from daceopt.runtime.device_entry import entry_of
from daceopt.runtime.executable import TimedExecutable
from tests.codegen.cuda import emulated_target


def _graph() -> Graph:
    graph = Graph("timed")
    x = graph.add_input("x", (64, 48), dace.float32)
    b = Builder(graph)
    row = b.reduce("sum", lambda v: v / 48, x, axes=(1,), keepdims=True)
    graph.add_output(b.elementwise(lambda v, m: sympy.tanh(v - m), x, row))
    graph.add_output(b.reduce("max", lambda v: v, x, axes=(0,)))
    return graph


def _program() -> Any:
    derived = derivation.derive(Imported(_graph(), device="cuda"), recipes.get("gpu"))
    (name,) = build.build("test of times", derived.directions(), libs.implement)
    return load_program(name)


def test_each_node_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_target.install_on_host(monkeypatch)
    program = TimedExecutable(_program())
    assert len(program.manifest.kernels) > 1
    given = {"input:0": np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)}
    plain = trial.run(_program(), given).outputs
    for _ in range(2):  # the second on events of its own
        found = trial.run(program, given).outputs
        assert len(program.seconds) == len(program.manifest.kernels)
        assert all(seconds > 0 for seconds in program.seconds) and sum(program.seconds) < 60
        assert found.keys() == plain.keys() and all(np.array_equal(found[k], plain[k]) for k in plain)


def test_what_waits_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated_target.install_on_host(monkeypatch)
    monkeypatch.setattr(device_graphs, "graphs_for", lambda device, kernels: f"graphs of {kernels} kernels")
    program = _program()
    timed, plain = (entry_of(p).place([]) for p in (TimedExecutable(program), program))
    assert timed.graphs is None and plain.graphs is not None  # type: ignore[attr-defined]
