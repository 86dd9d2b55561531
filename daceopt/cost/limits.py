"""What schedules ask of a machine: sizes of tiles, and work that is worth its threads, from its cores and caches.

Only facts count, which every process on a machine finds alike and cache keys hold (``build.machine.fingerprint``).
Measured rates do not: they differ from run to run, and with them the generated code would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import isqrt

from daceopt import system as facts
from daceopt.scoped import scoped

_L1, _L2, _L3 = 32 << 10, 1 << 20, 16 << 20  # where nothing is known of the caches


@dataclass(frozen=True)
class Limits:
    """Thresholds of a machine with ``cores``, ``l1`` and ``l2`` bytes of data cache of two levels per core, and ``l3``
    bytes that all share.

    Sizes are powers of two. The factors were found on 2 cores with 32 and 48 KiB, for which all figures in
    ``docs/decisions`` stand.
    """

    cores: int
    l1: int = _L1
    l2: int = _L2
    l3: int = _L3

    @property
    def worthwhile(self) -> int:
        """Weighted iterations that take as long as starting threads: an OpenMP region takes some 3.6 us and a quarter
        of one per core, a core 0.12 ns for an iteration."""
        return (14 + self.cores) << 11

    @property
    def few(self) -> int:
        """Fewer iterations than these are shared badly: eight for each core."""
        return 8 * self.cores

    @property
    def enough(self) -> int:
        """With as many iterations no core waits long: 32 for each."""
        return 32 * self.cores

    @property
    def accumulators(self) -> int:
        """Elements of float64 that fill the first-level cache."""
        return _power(self.l1 // 8)

    @property
    def columns(self) -> int:
        """Accumulators that stay there beside what streams by: an eighth of it."""
        return self.accumulators // 8

    @property
    def block(self) -> int:
        """Elements of float32 that fill half of it: long beside the start of a loop, short enough for a balance."""
        return _power(self.l1 // 8)

    @property
    def nearby(self) -> int:
        """Bytes that stay near a core while others stream by: half of a second-level cache of 16 times the first."""
        return 8 * self.l1

    @property
    def together(self) -> int:
        """Bytes near to all cores: half of the cache that they share, for weights and others need the rest."""
        return max(self.l3 // 2, self.l2 * self.cores)

    @property
    def streams(self) -> int:
        """Places of memory that one loop walks at full bandwidth: prefetchers follow as many, whatever the caches. Of
        36 a Xeon has what it has of 9, of 72 half, of 144 a third (arrays of 1 MiB)."""
        return 32

    @property
    def edge(self) -> int:
        """The edge of a square tile of float32, of which two fill a quarter of it."""
        return _power(isqrt(self.l1 // 32))


def _power(size: int) -> int:
    """The largest power of two that is not above ``size``."""
    return 1 << max(size, 1).bit_length() - 1


_assumed: ContextVar[Limits | None] = ContextVar("daceopt_assumed_limits", default=None)


@contextmanager
def assume(limits: Limits) -> Iterator[None]:
    """Within the block, schedules are made for this machine: for tests, and for code that runs elsewhere."""
    with scoped(_assumed, limits):
        yield


def assumed_limits() -> Limits | None:
    """Those of another machine, where schedules are made for one."""
    return _assumed.get()


def limits() -> Limits:
    """Those of this machine, or those assumed."""
    return _assumed.get() or _own()


@cache
def _own() -> Limits:
    caches = facts.caches()
    return Limits(facts.cores(), caches.l1 or _L1, caches.l2 or _L2, caches.l3 or _L3)
