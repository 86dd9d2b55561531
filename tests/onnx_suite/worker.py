"""A process that has everything imported and forks a child for each batch: ``python -m tests.onnx_suite.worker``.

Writes one line with what there is: name -> kind, and whether all is numbers. Then reads one JSON request per line
(names, mode, recipe), and writes the child's messages and {"exit": code}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, TextIO

from tests.onnx_suite import batch
from tests.onnx_suite.cases import cases, is_numeric


def main() -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed by accident is no message
    _send(channel, {name: [case.kind, is_numeric(case.model)] for name, case in cases().items()})
    for line in sys.stdin:
        code = _serve(json.loads(line), channel)
        _send(channel, {"exit": code})


def _serve(request: dict[str, Any], channel: TextIO) -> int:
    assert threading.active_count() == 1, "a child of a process with threads may hang"
    child = os.fork()
    if child == 0:
        try:
            batch.run(**request, send=lambda message: _send(channel, message))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _send(channel: TextIO, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


if __name__ == "__main__":
    main()
