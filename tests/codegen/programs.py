"""Small programs that the build tests compile: sources in the ABI of ``daceopt.codegen.entry``, without DaCe."""

from __future__ import annotations

import numpy as np

from daceopt.codegen.assemble import build_program, program_key
from daceopt.codegen.compiler import CompileJob
from daceopt.codegen.entry import Argument, FrameParameter, FrameProgram, entry_source
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


def frame(name: str, parameters: str, body: str, declarations: str = "") -> str:
    """Source of a program as DaCe's frame has it: init and program functions."""
    return f"""
    #include <cstdint>
    #include <stdexcept>
    {declarations}
    extern "C" void* __dace_init_{name}() {{ static int state; return &state; }}
    extern "C" void __program_{name}(void*, {parameters}) {{ {body} }}
    """


def scale_jobs(body: str = _BODY) -> list[CompileJob]:
    """Jobs of ``y = 3 x`` over ``n`` floats, or of another body over (x, y, n, status)."""
    program = FrameProgram(
        name="scale",
        parameters=(
            FrameParameter("x", "float", True),
            FrameParameter("y", "float", True),
            FrameParameter("n", "int64_t", False),
            FrameParameter("status", "int64_t", True),
        ),
        arguments=(Argument("input"), Argument("output"), Argument("symbol"), Argument("status")),
        shapes=(("n",),),
    )
    source = frame("scale", "const float* x, float* y, int64_t n, int64_t* status", body)
    return [CompileJob(source, "kernel"), CompileJob(entry_source(program, SCALE), "entry")]


def build_scale(store: Cache, body: str = _BODY) -> Executable:
    """Build it in ``store``."""
    return build_program(program_key("scale", body), SCALE, scale_jobs(body), store=store)


def run_scale(program: Executable, x: np.ndarray) -> np.ndarray:
    """Call it."""
    y = np.zeros_like(x)
    program.run([x.ctypes.data, y.ctypes.data, 0, 0, 0], (x.size,))
    return y
