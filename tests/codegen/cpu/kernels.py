"""Compiles the kernels of a graph and runs them one by one over NumPy buffers, without DaCe's frame."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sympy

from daceopt import libs, recipes
from daceopt.codegen.compiler import CompileJob, compile_objects, link
from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.codegen.kernel_unit import KernelSource
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.buffers import as_strided
from daceopt.ir.scalar import types
from daceopt.passes.transform import Site

EXPORT = "#pragma GCC visibility push(default)\n"  # kernels are hidden in a program; here Python calls them


BEYOND = 77  # what stands in an empty array, and around all
GUARD = 64  # elements


STREAM = 0x5EA  # of kernels that take one: never followed


class IndexOutOfRange(Exception):
    """Has the kernel's name and all memory."""


def run(
    graph: Graph, inputs: dict[str, np.ndarray], folder: Path, symbols: dict[str, int] | None = None
) -> dict[str, np.ndarray]:
    """The value of every array that is no view, after all kernels ran on ``inputs``."""
    sources = sources_of(graph)
    target = folder / f"kernels_{abs(hash(tuple(s.name for s in sources)))}.so"
    units = {s.name: f"{EXPORT}{s.unit}" for s in sources}  # equal kernels have one name
    jobs = [CompileJob(unit, "kernel") for unit in units.values()]
    link(compile_objects([*jobs, *libs.implement(graph).jobs]), target)
    return execute(graph, sources, ctypes.CDLL(str(target)), inputs, symbols or {})


def execute(
    graph: Graph,
    sources: Sequence[KernelSource],
    library: ctypes.CDLL,
    inputs: dict[str, np.ndarray],
    values: dict[str, int],
) -> dict[str, np.ndarray]:
    """Call the kernels in turn, with guards around all memory."""
    names = [name for name in graph.arrays() if not graph.is_view(name)]
    guarded = {name: _allocate(graph, name, inputs, values) for name in names}
    memory = {name: array[GUARD:-GUARD] for name, array in guarded.items()}
    if graph.uses_seed:
        memory["rng_seed"] = np.asarray(inputs["rng_seed"])
    for source in sources:
        _call(library, source, memory, values)
    for name, array in guarded.items():
        sides = array[[*range(GUARD), *range(-GUARD, 0)]]
        assert (sides == np.array(BEYOND).astype(array.dtype)).all(), f"a kernel wrote beside {name}"
    return {n: _shaped(graph, n, m, values) for n, m in memory.items() if n in graph.arrays()}


def sources_of(graph: Graph) -> list[KernelSource]:
    """The kernels of ``graph`` as the recipe ``cpu`` schedules them."""
    for step in recipes.get("cpu"):
        for site in step.match(graph) if step.level == "hardware" else ():
            if isinstance(site, Site):
                step.apply(site)  # a run would drop what nobody reads
    return [kernel_source(graph, entry.kernel) for entry in graph.kernels()]


def _number(size: Any, values: dict[str, int]) -> int:
    size = sympy.sympify(size)
    return int(size.subs({s: values[str(s)] for s in size.free_symbols}))


def _allocate(graph: Graph, name: str, inputs: dict[str, np.ndarray], values: dict[str, int]) -> np.ndarray:
    given = inputs.get(name, graph.constants.get(name))
    size = _number(graph.desc(name).total_size, values)
    kind = types.to_numpy(graph.dtype(name))
    memory = np.full(max(size, 1) + 2 * GUARD, np.array(BEYOND).astype(kind), kind)
    if size:
        memory[GUARD:-GUARD] = 0
    if given is not None:
        _shaped(graph, name, memory[GUARD:-GUARD], values)[...] = given
    return memory


def _shaped(graph: Graph, name: str, memory: np.ndarray, values: dict[str, int]) -> np.ndarray:
    shape = [_number(s, values) for s in graph.shape(name)]
    return as_strided(memory, shape, [_number(s, values) for s in graph.strides(name)])


def _call(library: ctypes.CDLL, source: KernelSource, memory: dict[str, np.ndarray], values: dict[str, int]) -> None:
    status = ctypes.c_int32(0)
    arguments: list[Any] = []
    for a in source.arguments:
        if a.kind == "pointer":
            array = memory[a.array]
            arguments.append(ctypes.c_void_p(array.ctypes.data + _number(a.offset, values) * array.itemsize))
        elif a.kind == "stream":
            arguments.append(ctypes.c_void_p(STREAM))
        elif a.kind == "symbol":
            arguments.append(ctypes.c_int64(values[a.symbol]))
        elif a.kind == "draw":
            arguments.append(ctypes.c_int64(a.value))
        else:
            arguments.append(ctypes.byref(status))
    getattr(library, source.name)(*arguments)
    if status.value:
        raise IndexOutOfRange(source.name, memory)
