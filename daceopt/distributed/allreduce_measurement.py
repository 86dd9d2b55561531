"""The time of all-reduces as measured on a process group, and kept for the machine (DisCo, section 4.2)."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from daceopt.distributed.allreduce_time import AllReduceTime
from daceopt.errors import DaceoptError, RunError
from daceopt.store import system
from daceopt.store.cache import default_cache, key

SIZES = tuple(1 << k for k in range(10, 25, 2))
"""Bytes of the tensors that are reduced: a kilobyte to 16 megabytes."""
_RUNS = 7
_AT_ONCE = 4  # reductions that are under way
_EDGE, _PRODUCTS = 128, 200  # of the products that are computed beside a reduction: some tens of microseconds each
_KIND, _FILE, _VERSION = "allreduce", "allreduce.json", 2
_TIMEOUT = 120.0  # seconds for all processes of one machine together


def measured(group: Any = None, sizes: Sequence[int] = SIZES, runs: int = _RUNS) -> AllReduceTime:
    """What an all-reduce takes in ``group`` beside computations, and takes from them, the same on all of its ranks,
    each of which calls this.

    The median of ``runs`` for each size, each of which begins when all ranks are there; ranks take what the first one
    fitted. Raises what the group raises.
    """
    samples, taken = [], []
    for nbytes in sizes:
        tensors = [torch.zeros(max(1, nbytes // 4)) for _ in range(_AT_ONCE)]
        found = [_beside_computing(tensors, group) for _ in range(runs + 1)][1:]  # the first one connects
        samples.append((4 * tensors[0].numel(), median(spent for spent, _ in found)))
        taken.append((4 * tensors[0].numel(), median(lost for _, lost in found)))
    made = AllReduceTime.fitted(dist.get_world_size(group), samples, taken)
    numbers = torch.tensor([made.per_byte, made.overhead, made.processor], dtype=torch.float64)
    dist.broadcast(numbers, dist.get_global_rank(group, 0) if group is not None else 0, group)
    return AllReduceTime(made.world, *numbers.tolist())


def _beside_computing(tensors: Sequence[torch.Tensor], group: Any) -> tuple[float, float]:
    """Seconds for each of ``tensors`` until all are reduced, and how many of them products that run meanwhile lose:
    where a reduction has no core of its own, it works on that of the products. Several are started at once, as in a
    step: what one waits for the other side, the next one is on its way."""
    a, b, out = (torch.ones(_EDGE, _EDGE) for _ in range(3))
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(_PRODUCTS):
        torch.mm(a, b, out=out)
    alone = (time.perf_counter() - start) / _PRODUCTS
    dist.barrier(group)
    start, count = time.perf_counter(), 0
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    while not all(work.is_completed() for work in works):
        torch.mm(a, b, out=out)
        count += 1
    spent = time.perf_counter() - start
    for work in works:
        work.wait()
    return spent / len(works), max(0.0, spent - count * alone) / len(works)


def on_this_machine(world: int) -> AllReduceTime:
    """Between ``world`` processes of this machine (gloo, one thread each), measured once and kept.

    Raises RunError where they do not start or end.
    """
    if world == 1:
        return AllReduceTime(1, 0.0, 0.0)
    identity = key(_KIND, _VERSION, system.fingerprint(), world)
    entry = default_cache().build(_KIND, identity, lambda folder: _write(folder, _spawned(world)))
    fields = json.loads((entry / _FILE).read_text())
    return AllReduceTime(world, float(fields["per_byte"]), float(fields["overhead"]), float(fields["processor"]))


def _write(folder: Path, found: AllReduceTime) -> None:
    (folder / _FILE).write_text(json.dumps(asdict(found)))


def _spawned(world: int) -> AllReduceTime:
    with tempfile.TemporaryDirectory() as folder:
        context = mp.spawn(_worker, (world, folder), world, join=False, daemon=True)
        deadline = time.monotonic() + _TIMEOUT
        try:
            while not context.join(timeout=1.0):
                if time.monotonic() > deadline:
                    raise RunError(f"{world} processes of this machine did not reduce a tensor in {_TIMEOUT:.0f} s")
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            raise RunError(f"{world} processes of this machine cannot reduce tensors: {_last_line(error)}") from error
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                process.join()
        fields = json.loads((Path(folder) / _FILE).read_text())
    if fields["world"] != world:
        raise DaceoptError(f"measured between {fields['world']} processes, expected {world}")
    return AllReduceTime(world, fields["per_byte"], fields["overhead"], fields["processor"])


def _last_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _worker(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    try:
        found = measured()
        if rank == 0:
            _write(Path(folder), found)
    finally:
        dist.destroy_process_group()
