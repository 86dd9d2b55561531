"""What both directions of a program compute on one rank, in float64, of random data."""

from __future__ import annotations

from typing import Any

import numpy as np

from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret

_INDICES = 2  # rows that each table has


def results(program: Program) -> list[np.ndarray]:
    """Outputs of both directions, of the same data each time."""
    generator, backward = np.random.default_rng(0), program.backward
    assert backward is not None
    values = {n: _drawn(generator, program.forward, n) for n in program.forward.inputs}
    forward = interpret(program.forward, values, np.float64)
    found = [forward[n] for n in program.forward.outputs]
    saved = dict(zip(backward.saved, (forward[n] for n in program.forward.saved), strict=True))
    roles = {role: values[name] for name, role in program.inputs.items()}
    given = {n: saved[n] if n in saved else roles.get(program.received[n]) for n in backward.inputs}
    given = {n: v if v is not None else np.full(backward.shape(n), 0.75) for n, v in given.items()}
    return found + list(map(interpret(backward, given, np.float64).get, backward.outputs))  # type: ignore[arg-type]


def _drawn(generator: np.random.Generator, graph: Graph, name: str) -> Any:
    shape, dtype = graph.shape(name), graph.dtype(name).as_numpy_dtype()
    if np.issubdtype(dtype, np.floating):
        return generator.normal(size=shape)
    return generator.integers(0, _INDICES, shape).astype(dtype)
