"""A process that has everything imported and forks a child for each batch: ``python -m tests.fuzz.worker``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from tqdm import tqdm

from daceopt.capture.torch.table import translated
from tests.capture.torch.interpreted import compile_interpreted
from tests.fuzz import batch
from tests.fuzz.program import Line, Program
from tests.onnx_suite.worker import serve
from tests.opinfo.worker import LATE

COMMAND = (sys.executable, "-m", "tests.fuzz.worker")


def main() -> None:
    serve(batch.run, _describe)


def _describe() -> dict[str, Any]:
    torch.set_num_threads(1)
    tqdm.monitor_interval = 0  # a thread of the progress bar that torch.fx does not show
    translated()
    for name in LATE:
        importlib.import_module(name)
    simple = Program(0, {"x": "torch.ones(2)"}, (Line("v0 = x.tanh()"),), "v0")
    with torch.no_grad():  # autograd's threads would not survive a fork
        batch.Trial(simple, compile_interpreted, "none").check()  # imports the rest
    return {"any seed": ["", True]}


if __name__ == "__main__":
    main()
