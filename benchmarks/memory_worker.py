"""The peak of one network: ``python -m benchmarks.memory_worker CONTENDER NETWORK TRAINING``, where what counts blocks
(``counting_allocator.c``) is preloaded, prints it as JSON."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import sys
import warnings

import torch

from benchmarks.contenders import forward, step
from benchmarks.harness import OURS
from benchmarks.models.suite import SUITE

_CALLS = 2  # before the one that counts


def peak(who: str, name: str, training: bool) -> int:
    """Bytes above those of model and inputs; what a program keeps between calls, and gradients, count."""
    counter = ctypes.CDLL(None)
    counter.counted_live.restype = counter.counted_peak.restype = ctypes.c_long
    torch.manual_seed(0)
    model, inputs = SUITE[name]()
    model.train(training)
    start = counter.counted_live()
    if who == OURS:
        from daceopt import optimized_module

        model = optimized_module(model, fallback="raise")
    call = step(model, inputs) if training else forward(model, inputs)
    for _ in range(_CALLS):
        call()
    gc.collect()
    counter.counted_restart()
    call()
    return int(counter.counted_peak() - start)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    print(json.dumps({"bytes": peak(sys.argv[1], sys.argv[2], sys.argv[3] == "1")}))
