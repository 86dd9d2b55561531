"""One compilation in a process of its own: ``python -m benchmarks.worker CONTENDER MODEL`` prints what it took as JSON.

The time runs from before the import of the compiler to the end of the first training step; importing PyTorch and making
the model, which every contender needs, do not count.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness import OURS
from benchmarks.models.named import MODELS
from daceopt.commands import demo

_ROOT = Path(__file__).resolve().parents[1]


def start(who: str, model: str, cache: Path) -> subprocess.Popen[str]:
    """Begin compiling ``model`` with the cache of either contender below ``cache``."""
    environment = {**os.environ, **caches(cache)}
    command = [sys.executable, "-m", "benchmarks.worker", who, model]
    return subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the process printed. Raises RuntimeError when it failed."""
    output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, process.args))} ended with {process.returncode}")  # type: ignore[arg-type]
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def caches(folder: Path) -> Mapping[str, str]:
    """Environment variables that put every compilation cache below ``folder``."""
    return {
        "DACEOPT_CACHE_DIR": str(folder / "daceopt"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def _measure(who: str, name: str) -> dict[str, float]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model(*inputs)  # eager kernels that set themselves up at their first call are not compilation
    start = time.perf_counter()
    demo.step(_compile(who, model), inputs)
    seconds = time.perf_counter() - start
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {"seconds": seconds, "error": demo.error(gradients, _exact_gradients(name, inputs))}


def _compile(who: str, model: nn.Module) -> nn.Module:
    if who != OURS:
        return torch.compile(model)
    from daceopt import optimized_module

    return optimized_module(model, fallback="raise")


def _exact_gradients(name: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What eager PyTorch gives in float64 for the same weights."""
    torch.manual_seed(0)
    model = MODELS[name]()[0].double()
    demo.step(model, tuple(x.double() if x.is_floating_point() else x for x in inputs))
    return [p.grad for p in model.parameters() if p.grad is not None]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    print(json.dumps(_measure(*sys.argv[1:])))
