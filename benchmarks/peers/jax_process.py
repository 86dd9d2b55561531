"""JAX in an environment of its own (``DACEOPT_BENCH_JAX``: its interpreter): a process that runs when it is its turn.

It knows the kernels of ``kernel_set`` only; of modules it can take nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.contenders import Contender, Inputs, Unavailable
from daceopt.cost.measure import Elapsed

JAX = "JAX"
VARIABLE = "DACEOPT_BENCH_JAX"


def enter(kernel: str, inputs: Inputs, training: bool) -> Contender:
    """``kernel`` by its name. Raises Unavailable where the variable names no interpreter with JAX."""
    python = os.environ.get(VARIABLE)
    if not python:
        raise Unavailable(f"{VARIABLE} names no interpreter (make .venv-jax)")
    process = _start(python, torch.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:
        for k, x in enumerate(inputs):
            np.save(Path(folder) / f"{k:03}.npy", x.detach().numpy())
        _ask(process, {"enter": kernel, "inputs": folder, "training": training})
    return Contender(lambda: Elapsed(_ask(process, {"run": 1})["seconds"]), lambda: _results(process))


def _results(process: subprocess.Popen[str]) -> list[torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        _ask(process, {"results": folder})
        return [torch.from_numpy(np.load(path)) for path in sorted(Path(folder).glob("*.npy"))]


@cache
def _start(python: str, threads: int) -> subprocess.Popen[str]:
    """One process for all kernels, kept to as many cores as PyTorch has threads: XLA asks how many it may use."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    command = ["taskset", "-c", cores, python, str(Path(__file__).with_name("jax_kernels.py"))]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTHONPATH", None)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _ask(process: subprocess.Popen[str], message: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    try:
        print(json.dumps(message), file=process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(process.stdout.readline())
    except (OSError, ValueError) as error:
        raise Unavailable(f"the process ended with {process.poll()}") from error
    return answer
