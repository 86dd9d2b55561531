"""A process that has everything imported and forks a child for each batch: ``python -m tests.opinfo.worker``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from daceopt.capture.torch.table import rules
from tests.capture.torch.interpreted import compile_interpreted
from tests.onnx_suite.worker import serve
from tests.opinfo import batch
from tests.opinfo.entries import Case, entries

COMMAND = (sys.executable, "-m", "tests.opinfo.worker")
LATE = ("daceopt.autodiff", "daceopt.capture.torch.derivative", "daceopt.capture.torch.higher")


def main() -> None:
    serve(batch.run, _describe)


def _describe() -> dict[str, Any]:
    import_all(lambda: batch.Trial(Case("tanh", "int64", 0), compile_interpreted, "none"))
    return {name: ["", True] for name in entries()}


def import_all(trial: Callable[[], batch.Trial]) -> None:
    """Import everything once, for children are many. ``trial`` makes a simple one, which imports the rest."""
    torch.set_num_threads(1)
    tqdm.monitor_interval = 0  # a thread of the progress bar that torch.fx does not show
    rules()
    for name in LATE:
        importlib.import_module(name)
    with torch.no_grad():  # autograd's threads would not survive a fork
        trial().check()


if __name__ == "__main__":
    main()
