"""The time of all-reduces as measured on a process group, and kept for the machine (DisCo, section 4.2)."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
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
_KIND, _FILE, _VERSION = "allreduce", "allreduce.json", 1
_TIMEOUT = 120.0  # seconds for all processes of one machine together


def measured(group: Any = None, sizes: Sequence[int] = SIZES, runs: int = _RUNS) -> AllReduceTime:
    """What an all-reduce takes in ``group``, the same on all of its ranks, each of which calls this.

    The median of ``runs`` for each size, each of which begins when all ranks are there; ranks take what the first one
    fitted. Raises what the group raises.
    """
    samples = []
    for nbytes in sizes:
        tensor = torch.zeros(max(1, nbytes // 4))
        times = []
        for _ in range(runs + 1):
            dist.barrier(group)
            start = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            times.append(time.perf_counter() - start)
        samples.append((4 * tensor.numel(), median(times[1:])))  # the first one connects
    made = AllReduceTime.fitted(dist.get_world_size(group), samples)
    numbers = torch.tensor([made.per_byte, made.overhead], dtype=torch.float64)
    dist.broadcast(numbers, dist.get_global_rank(group, 0) if group is not None else 0, group)
    return AllReduceTime(made.world, *numbers.tolist())


def on_this_machine(world: int) -> AllReduceTime:
    """Between ``world`` processes of this machine (gloo, one thread each), measured once and kept.

    Raises RunError where they do not start or end.
    """
    if world == 1:
        return AllReduceTime(1, 0.0, 0.0)
    identity = key(_KIND, _VERSION, system.fingerprint(), world)
    entry = default_cache().build(_KIND, identity, lambda folder: _write(folder, _spawned(world)))
    fields = json.loads((entry / _FILE).read_text())
    return AllReduceTime(world, float(fields["per_byte"]), float(fields["overhead"]))


def _write(folder: Path, found: AllReduceTime) -> None:
    content = {"world": found.world, "per_byte": found.per_byte, "overhead": found.overhead}
    (folder / _FILE).write_text(json.dumps(content))


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
    return AllReduceTime(world, fields["per_byte"], fields["overhead"])


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
