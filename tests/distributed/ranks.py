"""Real processes that are ranks of one group: started, watched by the clock, and ended by their ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
WORLD = 2


class Ended(NamedTuple):
    """How a rank ended: its exit code (None: it was ended because the time was over), and what it wrote."""

    code: int | None
    text: str
    seconds: float


def start(
    program: str, folder: Path, world: int = WORLD, seconds: float = 200, ended: int | None = None, **variables: str
) -> list[Ended]:
    """Run ``python -m program folder`` on ``world`` ranks until all have ended or the time is over; the rank ``ended``
    is ended once the others are."""
    own = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), **variables}
    began, children = time.monotonic(), []
    for rank in range(world):
        with (folder / f"rank{rank}.txt").open("w") as log:
            command = [sys.executable, "-m", program, str(folder)]
            environment = {**os.environ, **own, "RANK": str(rank)}
            children.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    last = {rank: _end(child, began + seconds) for rank, child in enumerate(children) if rank != ended}
    found = [last[rank] if rank in last else _end(child, time.monotonic()) for rank, child in enumerate(children)]
    texts = [(folder / f"rank{rank}.txt").read_text() for rank in range(world)]
    return [Ended(code, text, at - began) for (code, at), text in zip(found, texts)]


def _end(child: subprocess.Popen[bytes], end: float) -> tuple[int | None, float]:
    try:
        code = child.wait(max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        code = None
    return code, time.monotonic()


def outcomes(
    program: str, folder: Path, world: int = WORLD, seconds: float = 200, **variables: str
) -> dict[str, list[str]]:
    """Check -> what each rank says of it; "ok" where it passed."""
    ended = start(program, folder, world, seconds, **variables)
    files = [folder / f"rank{rank}.json" for rank in range(world)]
    missing = [
        f"rank {k}, exit code {e.code}:\n{e.text}" for k, (e, f) in enumerate(zip(ended, files)) if not f.exists()
    ]
    assert not missing, "\n".join(missing)
    assert not any(e.code for e in ended), "\n".join(e.text for e in ended)
    told = [json.loads(f.read_text()) for f in files]
    return {name: [own.get(name, "did not run") for own in told] for name in told[0]}


# -------------------------------------------------------------------- in a rank


def join(folder: Path, seconds: float = 60) -> None:
    """Become a rank; the group's store is a file, so that no port is taken."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    method = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))


def main(checks: Mapping[str, Callable[[], Any]]) -> None:
    """Run all checks in turn on every rank, and write down what came of them."""
    import traceback

    import torch
    import torch.distributed as dist

    folder = Path(sys.argv[1])
    join(folder, 150)  # while rank 0 searches a strategy the others wait
    found: dict[str, str] = {}
    for name, check in checks.items():
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            check()
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
            found[name] = "ok"
        except BaseException:
            found[name] = traceback.format_exc()
            break  # the ranks are no longer at the same place
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
