"""What a machine can do at best: bandwidth and arithmetic rate; the best ever measured is kept in the cache."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from daceopt import system as facts
from daceopt.cost.limits import Limits
from daceopt.store.cache import key
from daceopt.store.values import Values

_KIND, _VERSION = "machine", 4
_WORKING_SETS = (256 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20)  # bytes that a copy touches; the last is memory
_GEMM = 1024


@dataclass(frozen=True)
class Machine:
    """A machine's limits, of all its cores together; or a device's, whose ``cores`` are 0.

    ``l1``, ``l2``, ``l3``: bytes of the first core's data caches (0 where unknown). ``bandwidths``: (working set in
    bytes, bytes read plus written per second), small sets first, memory last. ``flops``: float32 additions and
    multiplications per second of a large matrix product, whose factors are rounded to ``factors``. ``rates``: (bytes of
    an element, the same of products of such elements); where float64 is not among them it goes at half of ``flops``.
    """

    name: str
    cores: int
    l1: int
    l2: int
    l3: int
    bandwidths: tuple[tuple[int, float], ...]
    flops: float
    rates: tuple[tuple[int, float], ...] = ()
    factors: str = "float32"

    @property
    def is_device(self) -> bool:
        """Is it an accelerator beside the processor?"""
        return self.cores == 0

    @property
    def limits(self) -> Limits:
        """What schedules make of it."""
        sizes = {name: size for name, size in (("l1", self.l1), ("l2", self.l2)) if size}
        return Limits(self.cores, **sizes)

    @property
    def memory_bandwidth(self) -> float:
        return self.bandwidths[-1][1]

    @property
    def cache_bandwidth(self) -> float:
        return self.bandwidths[0][1]

    def bandwidth(self, nbytes: float) -> float:
        """The bandwidth that a node touching ``nbytes`` may reach, as if they lay in the smallest cache they fit."""
        return next((rate for size, rate in self.bandwidths if nbytes <= size), self.memory_bandwidth)

    def rate(self, itemsize: int = 4) -> float:
        """Operations per second on elements of ``itemsize`` bytes."""
        return dict(self.rates).get(itemsize, self.flops / max(1.0, itemsize / 4))

    def best(self, other: Machine) -> Machine:
        """The same machine with the higher of both rates."""
        bandwidths = tuple((size, max(a, b)) for (size, a), (_, b) in zip(self.bandwidths, other.bandwidths))
        rates = tuple((size, max(a, b)) for (size, a), (_, b) in zip(self.rates, other.rates))
        return replace(self, bandwidths=bandwidths, flops=max(self.flops, other.flops), rates=rates)

    def raise_to(self, rate: float, itemsize: int = 4) -> Machine:
        """The machine, on which something has computed at ``rate`` on elements of ``itemsize`` bytes."""
        if itemsize in dict(self.rates):
            return replace(self, rates=tuple((n, max(r, rate) if n == itemsize else r) for n, r in self.rates))
        return replace(self, flops=max(self.flops, rate))

    def seconds(self, nbytes: float, flops: float, itemsize: int = 4) -> float:
        """A lower bound of the time that moves ``nbytes`` and computes ``flops`` on elements of ``itemsize`` bytes."""
        return max(nbytes / self.bandwidth(nbytes), flops / self.rate(itemsize))


@cache
def this_machine() -> Machine:
    """The machine that runs this process, with the cores that torch may use.

    Measured in under half a second, once per process. On a shared machine one moment says little, so the best of all
    processes that share the cache folder counts.
    """
    import torch

    threads = torch.get_num_threads()
    return best_known([facts.fingerprint(), torch.__version__, threads], measure(threads))


def best_known(who: Sequence[object], fresh: Machine) -> Machine:
    """What was measured now, or before on what ``who`` stands for, where that was faster; it is kept."""
    identity = key(_KIND, _VERSION, *who)
    stored = _MACHINES.find(identity)
    best = fresh if stored is None else stored.best(fresh)
    if best != stored:
        _MACHINES.keep(identity, best)
    return best


def _parse(fields: dict[str, Any]) -> Machine:
    return Machine(**{**fields, **{name: tuple(map(tuple, fields[name])) for name in ("bandwidths", "rates")}})


_MACHINES = Values(_KIND, _parse)


def measure(cores: int) -> Machine:
    """Measure the limits with ``cores`` threads (those that torch uses now)."""
    caches = facts.caches()
    rates = [_copy_bandwidth(size // 2, seconds=0.05) for size in _WORKING_SETS]
    bandwidths = by_working_set(_WORKING_SETS, rates)
    return Machine(facts.cpu_name(), cores, caches.l1, caches.l2, caches.l3, bandwidths, _gemm_rate(seconds=0.15))


def by_working_set(sizes: Sequence[int], rates: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Bandwidths, small sets first: what a larger set reaches, a smaller one reaches too."""
    return tuple(zip(sizes, list(itertools.accumulate(reversed(rates), max))[::-1]))


def _copy_bandwidth(nbytes: int, seconds: float) -> float:
    import torch

    source, target = torch.ones(nbytes // 4), torch.zeros(nbytes // 4)
    return 2 * nbytes / _best(lambda: target.copy_(source), seconds)


def _gemm_rate(seconds: float) -> float:
    import torch

    a, b, out = (torch.ones(_GEMM, _GEMM) for _ in range(3))
    return 2 * _GEMM**3 / _best(lambda: torch.mm(a, b, out=out), seconds)


def _best(call: Callable[[], object], seconds: float) -> float:
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
