"""The time of all-reduces as measured on a process group, and kept for the machine (DisCo, section 4.2)."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from daceopt import system
from daceopt.distributed.search.allreduce_time import AllReduceTime, LinearTime
from daceopt.errors import DaceoptError, RunError
from daceopt.store.cache import default_cache, key

SIZES = tuple(1 << k for k in range(10, 25, 2))
"""Bytes of the tensors that are reduced: a kilobyte to 16 megabytes."""
_RUNS = 5
_AT_ONCE, _LEAST_AT_ONCE, _BYTES = 16, 2, 1 << 25  # reductions under way: as many as hold no more bytes
_EDGE, _OPERANDS = 256, 128  # of the products beside: each reads another one of so many, not all of which are in cache
_KIND, _FILE, _VERSION = "allreduce", "allreduce.json", 3
_TIMEOUT = 120.0  # seconds for all processes of one machine together


class _Spent(NamedTuple):
    """Seconds a reduction: while ranks wait, while they compute, and what of that is taken from computing."""

    alone: float
    beside: float
    delay: float


def measure(
    group: torch.distributed.ProcessGroup | None = None, sizes: Sequence[int] = SIZES, runs: int = _RUNS
) -> AllReduceTime:
    """What an all-reduce takes in ``group``, beside computations and without, and what it takes from them, the same on
    all of its ranks, each of which calls this.

    The median of ``runs`` for each size, each of which begins when all ranks are there; ranks take what the first one
    fitted. Raises what the group raises.
    """
    products = _Products()
    measured: dict[int, _Spent] = {}
    for nbytes in sizes:
        count = min(_AT_ONCE, max(_LEAST_AT_ONCE, _BYTES // nbytes))
        tensors = [torch.zeros(max(1, nbytes // 4)) for _ in range(count)]
        own = [_once(tensors, products, group) for _ in range(runs + 1)][1:]  # the first one connects
        measured[4 * tensors[0].numel()] = _Spent(*map(median, zip(*own)))
    lines = [LinearTime.through([(n, spent[k]) for n, spent in measured.items()]) for k in range(len(_Spent._fields))]
    numbers = torch.tensor(lines, dtype=torch.float64)
    dist.broadcast(numbers, dist.get_global_rank(group, 0) if group is not None else 0, group)
    alone, beside, computation = (LinearTime(*line) for line in numbers.tolist())
    return AllReduceTime(dist.get_world_size(group), *alone, beside, computation)


class _Products:
    """What is computed beside: products whose operands come from memory, as in a step."""

    def __init__(self) -> None:
        self.operands, self.out = torch.ones(_OPERANDS, _EDGE, _EDGE), torch.empty(_EDGE, _EDGE)
        self.count = 0

    def next(self) -> None:
        torch.mm(self.operands[self.count % _OPERANDS], self.operands[0], out=self.out)
        self.count += 1

    def seconds(self) -> float:
        """Processor time of one that nothing runs beside."""
        start = time.thread_time()
        for _ in range(_OPERANDS):
            self.next()
        return (time.thread_time() - start) / _OPERANDS


def _once(tensors: Sequence[torch.Tensor], products: _Products, group: torch.distributed.ProcessGroup | None) -> _Spent:
    """For each of ``tensors``, all of which are started at once: in a step more of them are ready than are reduced."""
    dist.barrier(group)
    start = time.perf_counter()
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.wait()
    alone = time.perf_counter() - start
    dist.barrier(group)
    each = products.seconds()
    dist.barrier(group)
    before, began = products.count, _clocks()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    while not all(work.is_completed() for work in works):
        products.next()
    beside, own, others = (b - a for a, b in zip(began, _clocks()))
    for work in works:
        work.wait()
    # the thread was off its core: for the reductions no longer than their threads worked, the rest is other programs'
    seconds = min(others, beside - own) + max(0.0, own - (products.count - before) * each)
    return _Spent(alone / len(tensors), beside / len(tensors), max(0.0, seconds) / len(tensors))


def _clocks() -> tuple[float, float, float]:
    """Seconds that passed, that this thread worked, and that all others of the process did."""
    own = time.thread_time()
    return time.perf_counter(), own, time.process_time() - own


def on_this_machine(world: int) -> AllReduceTime:
    """Between ``world`` processes of this machine (gloo, one thread each), measured once and kept.

    Raises RunError where they do not start or end.
    """
    if world == 1:
        return AllReduceTime(1, 0.0, 0.0)
    identity = key(_KIND, _VERSION, system.fingerprint(), world)
    return default_cache().make(_KIND, identity, lambda folder: _write(folder, _spawn(world)), _read)


def _read(folder: Path) -> AllReduceTime:
    return AllReduceTime.of_fields(json.loads((folder / _FILE).read_text()))


def _write(folder: Path, time_of_calls: AllReduceTime) -> None:
    (folder / _FILE).write_text(json.dumps(asdict(time_of_calls)))


def _spawn(world: int) -> AllReduceTime:
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
        measured = _read(Path(folder))
    if measured.world != world:
        raise DaceoptError(f"measured between {measured.world} processes, expected {world}")
    return measured


def _last_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _worker(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    try:
        measured = measure()
        if rank == 0:
            _write(Path(folder), measured)
    finally:
        dist.destroy_process_group()
