"""A rank that dies, hangs, is late or computes something else: run by ``test_faults`` as processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import daceopt
from daceopt.errors import WorkerError
from tests.distributed import ranks

SECONDS = 6.0  # the group's timeout
BAD = 1


def fail(how: str) -> None:
    """What the rank ``BAD`` does after two steps."""
    if how == "dies":
        os._exit(9)
    if how == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "is late":
        time.sleep(3 * SECONDS + 10)


def main() -> None:
    folder, how, whole = Path(sys.argv[1]), os.environ["HOW"], os.environ["WHOLE"] == "1"
    ranks.join(folder, SECONDS)
    torch.manual_seed(0)
    model = daceopt.data_parallel(nn.Linear(6, 3), strategy=os.environ.get("STRATEGY", "auto"), fallback="raise")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = daceopt.training_step(model, functional.cross_entropy, optimizer, fallback="raise") if whole else None
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    for k in range(4):
        if k == 2 and dist.get_rank() == BAD:
            fail(how)
        began = time.monotonic()
        try:
            if step is None:
                functional.cross_entropy(model(x), y).backward()
            else:
                step(x, y)
        except WorkerError as error:
            print(f"after {k} steps and {time.monotonic() - began:.1f} s: {error}", flush=True)
            os._exit(3)  # as an error of a script, without the tear-down of a broken group
    print("trained")


if __name__ == "__main__":
    main()
