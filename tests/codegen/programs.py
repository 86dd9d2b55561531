"""Small programs that the build tests compile: a few statements in the ABI of ``daceopt.codegen.entry``."""

from __future__ import annotations

import numpy as np

from daceopt.codegen.assemble import build_program, program_key
from daceopt.codegen.compiler import CompileJob
from daceopt.codegen.entry import BufferAddress, ProgramSource
from daceopt.runtime.executable import Executable
from daceopt.runtime.manifest import Manifest, Symbol, Tensor
from daceopt.store.cache import Cache

SCALE = Manifest(
    name="scale",
    inputs=(Tensor("x", "float32", 1),),
    outputs=(Tensor("y", "float32", 1),),
    symbols=(Symbol("n", "x", 0),),
)
_BODY = "for (int64_t i = 0; i < n; ++i) y[i] = 3.0f * x[i];"


def scale_source(body: str = _BODY) -> ProgramSource:
    """``y = 3 x`` over ``n`` floats, or another body over (x, y, n, status)."""
    buffers = {"x": ("float", "input"), "y": ("float", "output"), "status": ("int64_t", "status")}
    addresses = {name: (ctype, BufferAddress(source)) for name, (ctype, source) in buffers.items()}
    return ProgramSource(SCALE, body, addresses, "#include <stdexcept>", shapes=(("n",),))


def scale_jobs(body: str = _BODY) -> list[CompileJob]:
    """The jobs of it."""
    return [CompileJob(scale_source(body).text(), "frame")]


def build_scale(store: Cache, body: str = _BODY) -> Executable:
    """Build it in ``store``."""
    return build_program(program_key("scale", body), SCALE, scale_jobs(body), store=store)


def run_scale(program: Executable, x: np.ndarray) -> np.ndarray:
    """Call it."""
    y = np.zeros_like(x)
    program.run([x.ctypes.data, y.ctypes.data, 0, 0, 0], (x.size,))
    return y
