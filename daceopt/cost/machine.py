"""What a machine can do at best: memory and cache bandwidth, arithmetic rate; the best ever measured is kept in the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from daceopt.build import machine as facts
from daceopt.build.cache import default_cache, key

_KIND, _FILE, _VERSION = "machine", "machine.json", 1
_LARGE = 64 << 20  # bytes of each array of the copy from memory
_GEMM = 1024


@dataclass(frozen=True)
class Machine:
    """A machine's limits. Bandwidths are bytes read plus written per second by all cores together.

    ``l1``, ``l2``, ``l3``: bytes of the first core's data caches (0 where unknown). ``flops``: float32 additions and multiplications
    per second of a large matrix product; float64 goes at half of it.
    """

    name: str
    cores: int
    l1: int
    l2: int
    l3: int
    memory_bandwidth: float
    cache_bandwidth: float
    flops: float

    def bandwidth(self, nbytes: float) -> float:
        """The bandwidth that a node touching ``nbytes`` in all may reach: that of the second-level caches if it fits them."""
        return self.cache_bandwidth if nbytes <= self.l2 * self.cores else self.memory_bandwidth

    def best(self, other: Machine) -> Machine:
        """The same machine with the higher of both rates."""
        rates = ("memory_bandwidth", "cache_bandwidth", "flops")
        return replace(self, **{rate: max(getattr(self, rate), getattr(other, rate)) for rate in rates})

    def seconds(self, nbytes: float, flops: float, itemsize: int = 4) -> float:
        """A lower bound of the time that moves ``nbytes`` and computes ``flops`` on elements of ``itemsize`` bytes."""
        return max(nbytes / self.bandwidth(nbytes), flops * max(1.0, itemsize / 4) / self.flops)


@cache
def this_machine() -> Machine:
    """The machine that runs this process, with the cores that torch may use.

    Measured in under half a second, once per process. On a shared machine one moment says little, so the best of all processes that
    share the cache folder counts.
    """
    import torch

    threads = torch.get_num_threads()
    store, identity = default_cache(), key(_KIND, _VERSION, facts.fingerprint(), torch.__version__, threads)
    fresh, entry = measure(threads), store.get(_KIND, identity)
    if entry is None:
        store.put(_KIND, identity, lambda folder: _write(folder, fresh))
        return fresh
    known = Machine(**json.loads((entry / _FILE).read_text()))
    best = known.best(fresh)
    if best != known:
        store.discard(_KIND, identity)
        store.put(_KIND, identity, lambda folder: _write(folder, best))
    return best


def _write(folder: Path, machine: Machine) -> None:
    (folder / _FILE).write_text(json.dumps(asdict(machine)))


def measure(cores: int) -> Machine:
    """Measure the limits with ``cores`` threads (those that torch uses now)."""
    caches = facts.caches()
    in_cache = max(caches.l2 * cores // 4, 64 << 10)
    memory = _copy_bandwidth(_LARGE, seconds=0.1)
    cached = _copy_bandwidth(in_cache, seconds=0.05)
    return Machine(
        facts.cpu_name(), cores, caches.l1, caches.l2, caches.l3, memory, max(cached, memory), _gemm_rate(seconds=0.15)
    )


def _copy_bandwidth(nbytes: int, seconds: float) -> float:
    import torch

    source, target = torch.ones(nbytes // 4), torch.zeros(nbytes // 4)
    return 2 * nbytes / _best(lambda: target.copy_(source), seconds)


def _gemm_rate(seconds: float) -> float:
    import torch

    a, b, out = (torch.ones(_GEMM, _GEMM) for _ in range(3))
    return 2 * _GEMM**3 / _best(lambda: torch.mm(a, b, out=out), seconds)


def _best(call: Callable[[], Any], seconds: float) -> float:
    """The shortest of the calls that fit into ``seconds`` after one that warms up: what others do only adds time."""
    import torch

    with torch.no_grad():
        call()
        best, deadline = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
    return best
