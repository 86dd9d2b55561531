"""HiGHS, the solver of integer programs, without the banner that its later versions print into a process."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_BANNER = (b"Running HiGHS", b"Includes third-party", b"Copyright")
_lock = threading.Lock()


def new() -> Any:
    """A ``highspy.Highs`` without a program, whose output is off. Raises ImportError where it is not installed."""
    import highspy

    with _lock:
        _print_banner()
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    return solver


@cache
def _print_banner() -> None:
    """The first solver of a process prints it, before any option can be set."""
    import highspy

    with _without(_BANNER):
        highspy.Highs()


@contextmanager
def _without(beginnings: tuple[bytes, ...]) -> Iterator[None]:
    """Within the block no line that begins so reaches standard output; all others do at its end, whoever wrote them."""
    flush = ctypes.CDLL(None).fflush
    flush(None)
    with tempfile.TemporaryFile() as held:
        output = os.dup(1)
        os.dup2(held.fileno(), 1)
        try:
            yield
        finally:
            flush(None)
            os.dup2(output, 1)
            held.seek(0)
            for line in held:
                if not line.startswith(beginnings):
                    os.write(output, line)
            os.close(output)
