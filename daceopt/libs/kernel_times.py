"""How long the kernels and the library calls of a graph take: built, and run."""

from __future__ import annotations

import uuid

import numpy as np

from daceopt.codegen import build
from daceopt.codegen.assemble import KIND, require_program
from daceopt.codegen.trial import run
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import types
from daceopt.libs.base import implement
from daceopt.runtime.executable import TimedExecutable
from daceopt.store.cache import default_cache


def kernel_times(graph: Graph, runs: int, identity: str | None = None) -> dict[str, float]:
    """The shortest seconds of each kernel and call in ``runs`` runs, by each array that it writes: what others do
    meanwhile only adds time.

    Inputs are random numbers; integers and bool are 0, which is inside of every array. ``identity``: what the program
    is kept by in the cache; None drops it. Raises BuildError where the compiler fails.
    """
    roles = Program.of(graph).roles(graph)
    (name,) = build.build(identity or f"temporary {uuid.uuid4()}", [(graph, roles)], implement)
    try:
        program = TimedExecutable(require_program(name))
        feeds = {f"input:{k}": _values(graph, n) for k, n in enumerate(graph.inputs)}
        shortest: dict[str, float] = {}
        for _ in range(runs):
            run(program, feeds)
            shortest = {name: min(t, shortest.get(name, t)) for name, t in program.by_array().items()}
        return shortest
    finally:
        if identity is None:
            default_cache().discard(KIND, name)


def _values(graph: Graph, name: str) -> np.ndarray:
    shape, dtype = tuple(map(int, graph.shape(name))), types.to_numpy(graph.dtype(name))
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)
