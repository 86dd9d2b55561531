"""Runs printed CUDA C++ on the host: the same text, compiled against ``emulation.h``, every thread of every block; what
turns and exchanges mean is in ``emulation.cpp``, which is compiled once."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from daceopt import system
from daceopt.codegen.cuda.kernel_source import kernel_source
from daceopt.codegen.kernel_unit import KernelSource
from daceopt.ir.graph.graph import Graph
from daceopt.store.cache import default_cache, key
from tests.codegen.cpu.kernels import execute

EMULATION = Path(__file__).parent / "emulation.h"
RUNTIME = EMULATION.with_suffix(".cpp")
FLAGS: tuple[str, ...] = ("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-Wall", "-Werror")
if (_compiler := system.compiler()) is not None and _compiler.family == "gcc":
    FLAGS += ("-fno-gnu-unique",)
# what a statement need not read; what nvcc takes; digits of loops that never run; what programs compare
FLAGS += ("-Wno-unused", "-Wno-unknown-pragmas", "-Wno-div-by-zero", "-Wno-tautological-compare")
_LIBRARY = "emulated.so"
ORDERS = (0, 1, 2)  # of threads between two barriers, see emulation.h


def sources_of(graph: Graph) -> list[KernelSource]:
    return [kernel_source(graph, entry.kernel) for entry in graph.kernels()]


def text() -> str:
    """What the meaning of a kernel depends on."""
    return EMULATION.read_text() + RUNTIME.read_text()


@cache
def emulation() -> Path:
    """A folder with what each unit includes first, ``emulation.h`` (for gcc precompiled), and ``emulation.o``, which
    each library is linked with."""
    compiler = system.require_compiler()

    def write(folder: Path) -> None:
        own = folder / EMULATION.name
        own.write_text(f'#include "{EMULATION}"\n')
        start = (*compiler.command, *FLAGS)
        subprocess.run([*start, "-c", str(RUNTIME), "-o", str(folder / "emulation.o")], check=True)
        if compiler.family == "gcc":
            subprocess.run([*start, "-x", "c++-header", str(own), "-o", f"{own}.gch"], check=True)

    return default_cache().build("object", key(str(EMULATION), text(), FLAGS, system.fingerprint()), write)


def _compiled(unit: str) -> Path:
    """The library of a unit, kept from run to run as objects are."""

    def write(folder: Path) -> None:
        command = [*system.require_compiler().command, *FLAGS, "-shared", "-include", str(emulation() / EMULATION.name)]
        command += ["-x", "c++", "-", "-x", "none", str(emulation() / "emulation.o"), "-o", str(folder / _LIBRARY)]
        done = subprocess.run(command, input=unit, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return default_cache().build("object", key(unit, text(), FLAGS, system.fingerprint()), write) / _LIBRARY


def library_of(sources: Sequence[KernelSource], folder: Path) -> ctypes.CDLL:
    """The kernels as host code. What the compiler says is the test's failure."""
    unit = "\n".join(dict.fromkeys(s.unit for s in sources))
    target = folder / f"emulated_{hashlib.sha256((unit + text()).encode()).hexdigest()[:16]}.so"
    if not target.exists():
        shutil.copyfile(_compiled(unit), target)  # each test has variables of its own
    library = ctypes.CDLL(str(target))
    library.emulation_error.restype = ctypes.c_char_p
    library.emulation_stream.restype = ctypes.c_void_p
    return library


class EmulationError(Exception):
    """What a device would have hung at, or left undefined."""


def run_once(
    graph: Graph,
    sources: Sequence[KernelSource],
    library: ctypes.CDLL,
    inputs: dict[str, np.ndarray],
    symbols: dict[str, int],
    order: int,
) -> dict[str, np.ndarray]:
    """All arrays after the kernels ran with threads in one order. Raises EmulationError."""
    library.emulation_start(order)
    found = execute(graph, sources, library, inputs, symbols)
    if reason := library.emulation_error():
        raise EmulationError(reason.decode())
    return found


def run(
    graph: Graph,
    inputs: dict[str, np.ndarray],
    folder: Path,
    symbols: dict[str, int] | None = None,
    orders: Sequence[int] = ORDERS,
) -> dict[str, np.ndarray]:
    """The value of every array after all kernels ran on ``inputs``: bit for bit the same in each order of threads."""
    sources = sources_of(graph)
    library = library_of(sources, folder)
    found = []
    for order in orders:
        found.append(run_once(graph, sources, library, inputs, symbols or {}, order))
    for other in found[1:]:
        for name, value in other.items():
            assert value.tobytes() == found[0][name].tobytes(), f"{name} depends on the order of threads"
    return found[0]
