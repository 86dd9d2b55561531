"""The seconds of what generated loops do on this machine, by small loops that are compiled as kernels are."""

from __future__ import annotations

import ctypes
import tempfile
import time
from functools import partial
from pathlib import Path

from daceopt.codegen.compiler import CompileJob, compile_object, link
from daceopt.codegen.kernel_unit import support_header
from daceopt.cost.limits import limits
from daceopt.cost.rates import least_seconds, register_loops
from daceopt.errors import BuildError
from daceopt.store.cache import default_cache

_SOURCE = Path(__file__).parents[1] / "src" / "loop_rates.cpp"
_ELEMENTS = 1024  # of float32: with what is computed of them they stay in the first cache
_LINE = 16  # elements of float32 in a line of the caches, and in a short loop
_STEPS = 8  # multiplications and additions of a polynomial
_COPIED = 8  # bytes of an element that is loaded and stored
_SCALARS = 5  # accesses, operations and the iteration itself, as ``cost/loop_work.py`` counts them
_EVICTED = 2  # times the last cache, written: what leaves nothing else in any cache
_RUN = 1e-4  # seconds between two looks at the clock
_PATIENCE = 0.02  # seconds for each loop
_COLD = 24  # calls of kernels that are in no cache
_FUNCTIONS = ("exp", "erf", "tanh", "log", "power", "sine", "division")


def measure() -> dict[str, float] | None:
    """Unit of ``cost/loop_work.py`` -> seconds by one core; ``call``: those of a kernel until its first iteration. In
    about half a second, once the loops are compiled; None where they cannot be compiled."""
    try:
        library = _library()
    except (BuildError, OSError):  # no compiler, or a folder whose libraries do not load
        return None
    seconds = partial(_seconds, library)
    byte = seconds("copy") / (_COPIED * _ELEMENTS)
    spent = {name: seconds(name) / _ELEMENTS - _COPIED * byte for name in _FUNCTIONS}
    spent["operation"] = seconds("polynomial") / (2 * _STEPS * _ELEMENTS)
    spent["multiplication"] = seconds("multiplication") / (_STEPS * _ELEMENTS)
    spent["strided"] = seconds("strided") / (_ELEMENTS / _LINE)
    spent["wide"] = seconds("wide") / _ELEMENTS
    spent["scalar"] = seconds("scalar") / (_SCALARS * _ELEMENTS)
    short = _LINE * _COPIED * byte
    spent["entry"] = seconds("entry") / (_ELEMENTS / _LINE) - short
    spent["lanes"] = seconds("lanes") / (_ELEMENTS / _LINE) - short - spent["entry"]
    return {"byte": byte, **{name: max(value, byte) for name, value in spent.items()}, "call": _cold_call(library)}


def _library() -> ctypes.CDLL:
    text = f"{support_header(_SOURCE.read_text())}\n#include <chrono>\n{_SOURCE.read_text()}"
    compiled = compile_object(CompileJob(text, label="loops that are timed"), default_cache())
    with tempfile.TemporaryDirectory() as folder:
        link([compiled], target := Path(folder) / "loop_rates.so")
        return ctypes.CDLL(str(target))


def _operands() -> tuple[list[ctypes.c_void_p], object]:
    """Addresses of two arrays of float32 and one of float64, at starts of lines; and who holds their memory."""
    import numpy as np

    held = np.full(4 * _ELEMENTS + _LINE, 0.75, np.float32)
    start = held.ctypes.data + -held.ctypes.data % (4 * _LINE)
    held[2 * _ELEMENTS :] = 0.0
    return [ctypes.c_void_p(start + 4 * k * _ELEMENTS) for k in range(3)], held


def _seconds(library: ctypes.CDLL, name: str) -> float:
    """The shortest of the runs that fit into the time, by the clock of this thread: past what others do."""
    addresses, _held = _operands()
    call = partial(library[f"daceopt_loop_{name}"], *addresses, ctypes.c_int64(_ELEMENTS))
    once = ctypes.c_int64(1)
    call(once)
    start = time.thread_time()
    call(ctypes.c_int64(8))
    times = max(1, int(_RUN * 8 / max(time.thread_time() - start, 1e-7)))
    return least_seconds(partial(call, ctypes.c_int64(times)), _PATIENCE, clock=time.thread_time) / times


def _cold_call(library: ctypes.CDLL) -> float:
    import numpy as np

    (addresses, _held), memory = _operands(), np.zeros(_EVICTED * limits().l3 // 4, np.float32)
    call = library["daceopt_cold_call"]
    call.restype = ctypes.c_double
    operands = (*addresses, ctypes.c_void_p(memory.ctypes.data), ctypes.c_int64(memory.size))
    return 1e-9 * min(float(call(*operands)) for _ in range(_COLD))


register_loops(measure)
