"""A process that has everything imported and forks a child for each batch: ``python -m tests.fuzz.worker``."""

from __future__ import annotations

import sys
from typing import Any

from tests.capture.torch.interpreted import compile_interpreted
from tests.fuzz import batch
from tests.fuzz.program import Line, Program
from tests.onnx_suite.worker import serve
from tests.opinfo.worker import import_all

COMMAND = (sys.executable, "-m", "tests.fuzz.worker")


def main() -> None:
    serve(batch.run, _describe)


def _describe() -> dict[str, Any]:
    simple = Program(0, {"x": "torch.ones(2)"}, (Line("v0 = x.tanh()"),), "v0")
    import_all(lambda: batch.Trial(simple, compile_interpreted, "none"))
    return {"any seed": ["", True]}


if __name__ == "__main__":
    main()
