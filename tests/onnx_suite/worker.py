"""A process that has everything imported and forks a child for each batch: ``python -m tests.onnx_suite.worker``.

Writes one line with what there is: name -> kind, and whether all is numbers. Then reads one JSON request per line
(names, mode, recipe), and writes the child's messages and {"exit": code}. The mode ``emulated`` is ``native`` with
kernels for CUDA in the emulation, on arrays of the host.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import pytest

from tests.codegen.cuda import emulated_target
from tests.onnx_suite import batch
from tests.onnx_suite.cases import cases, is_numeric


def main() -> None:
    serve(_run, lambda: {name: [case.kind, is_numeric(case.model)] for name, case in cases().items()})


def _run(names: Sequence[str], mode: str, recipe: str, send: batch.Send) -> None:
    if mode == "emulated":
        emulated_target.install_on_host(pytest.MonkeyPatch())  # in this child
    batch.run(names, "native" if mode == "emulated" else mode, recipe, send)


def serve(run: Callable[..., None], describe: Callable[[], Any]) -> None:
    """Write what there is, then serve requests until the input ends; ``run(names, mode, recipe, send)`` in a child."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed by accident is no message
    _send(channel, describe())
    for line in sys.stdin:
        code = _serve(run, json.loads(line), channel)
        _send(channel, {"exit": code})


def _serve(run: Callable[..., None], request: dict[str, Any], channel: TextIO) -> int:
    assert threading.active_count() == 1, "a child of a process with threads may hang"
    child = os.fork()
    if child == 0:
        try:
            run(**request, send=lambda message: _send(channel, message))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _send(channel: TextIO, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


if __name__ == "__main__":
    main()
