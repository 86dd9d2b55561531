"""What a core, and what all cores together, reach: the numbers of the cost model, measured once on each machine.

Unlike the facts of ``limits.py`` they are measured, so they say which of two ways is taken, and never what is right:
programs in the cache stay valid when they are measured again.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any

from daceopt import system as facts
from daceopt.cost.limits import Limits, assumed_limits
from daceopt.scoped import scoped
from daceopt.store.cache import key
from daceopt.store.values import Values

if TYPE_CHECKING:
    import numpy as np

_KIND, _VERSION = "rates", 7
_SETS = (32 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20, 128 << 20)  # bytes that a copy touches; the last is memory
_SHARED = 16 << 20  # of sets from here on, cores share the way to memory
_LINE = 64  # bytes of a line of the caches
_ELEMENTS = 8192  # of float32, for arithmetic: they stay in the first cache
_TANH = 20  # operations of a hyperbolic tangent (cost.work.WEIGHTS), which NumPy computes in vectors as kernels do
_EDGE = 512  # of a matrix product
_SAMPLES = 4  # at least, however long others had the cores
_TURNS = 8  # of the libraries that are compared, on each core
_WINS = 0.8  # of the turns, in which a library has to be the fastest for its rate to count
_REPEATED = 1 << 20  # bytes under one look at the clock
_FASTEST = 4e11  # bytes per second that no core exceeds: a vector of 64 bytes in and one out per cycle, at 3 GHz
_BRIEF, _LONG = 0.02, 0.06  # seconds for a working set, and for one that others may push out of their caches
_PATIENCE = 0.3  # seconds to find a moment in which all cores are free
_BUSY = 1.5  # times what a region takes elsewhere: others had the cores


LOOPS = (
    ("byte", 3.8e-12),
    ("operation", 1.4e-11),
    ("multiplication", 1.2e-11),
    ("exp", 2.8e-10),
    ("erf", 3.5e-10),
    ("tanh", 3e-10),
    ("log", 2.3e-10),
    ("power", 2e-9),
    ("sine", 2.7e-10),
    ("division", 2e-10),
    ("strided", 4e-10),
    ("entry", 1e-9),
    ("lanes", 4e-9),
    ("wide", 6e-11),
    ("scalar", 5e-10),
    ("call", 3e-7),
)
"""Seconds of one core of the reference machine (Xeon with AMX) for each unit of ``loop_work.py``; ``call``: of a kernel
until its first iteration, where others have pushed its code out of the caches."""

_HIDDEN, _WAITING = ("byte", "operation"), "wide"


@dataclass(frozen=True)
class Rates:
    """Rates of a machine with ``cores``.

    ``call``: seconds that a kernel takes before its first iteration. ``region``: until all threads have started and met
    again. ``operation``: of one operation on float32 (``cost.work``), by one core, in vectors. ``product``:
    operations of a matrix product per second, by all cores; ``products``: the same of each library that multiplies.
    ``alone``: (working set in bytes, bytes read plus written per second) of one core, small sets first; ``together``:
    of all cores. ``loops``: seconds by one core of each unit of what scheduled loops do (``loop_work.py``).
    """

    cores: int
    call: float
    region: float
    operation: float
    product: float
    alone: tuple[tuple[int, float], ...]
    together: tuple[tuple[int, float], ...]
    products: tuple[tuple[str, float], ...] = ()
    loops: tuple[tuple[str, float], ...] = LOOPS

    def best(self, other: Rates) -> Rates:
        """The same machine as it is when it has less else to do."""
        alone, together = (
            tuple((size, max(a, b)) for (size, a), (_, b) in zip(mine, others))
            for mine, others in ((self.alone, other.alone), (self.together, other.together))
        )
        region, operation = min(self.region, other.region), min(self.operation, other.operation)
        before, product = dict(self.products), max(self.product, other.product)
        products = tuple((name, max(rate, before.get(name, 0.0))) for name, rate in other.products)
        loops = tuple((unit, min(a, b)) for (unit, a), (_, b) in zip(self.loops, other.loops))
        return Rates(self.cores, self.call, region, operation, product, alone, together, products, loops)

    def of_cores(self, cores: int) -> Rates:
        """The same machine for a program that has so many of its cores."""
        return replace(self, cores=cores, product=self.product * cores / self.cores)

    def seconds(self, nbytes: float, operations: float, *, threads: int = 1, beside: float = 0.0) -> float:
        """The time of loops that move ``nbytes`` and compute ``operations``, by ``threads`` cores that start already.

        Kernels wait for memory and compute in turn more than at once: as measured, the sum is nearer than the maximum.
        ``beside``: bytes that other cores move at the same time: what does not fit into the caches of one core goes
        through a memory that they share.
        """
        rate = _at(self.alone, nbytes / threads) * threads
        if threads > 1 or beside:
            busy = self.cores if beside else threads
            rate = min(rate, _at(self.together, nbytes + beside) * threads / busy)
        return nbytes / rate + operations * self.operation / threads

    @property
    def cold_call(self) -> float:
        """Seconds of a kernel until its first iteration, where others ran before it."""
        return dict(self.loops)["call"]

    def running(self, work: Mapping[str, float], parts: Iterable[tuple[float, float]], threads: int = 1) -> float:
        """The time of ``threads`` cores for loops that do ``work`` and move ``parts``: in turn, but for sums that wait
        for their last addition while memory is read."""
        waiting = work.get(_WAITING, 0.0) * dict(self.loops)[_WAITING] / threads
        return self.computing(work) / threads - waiting + max(waiting, self.moving(parts, threads))

    def computing(self, work: Mapping[str, float]) -> float:
        """The time of one core for what loops do by ``loop_work.py``, if all that they need lay in its first cache:
        what vectors load and store hides behind their arithmetic, or the other way round; all else adds up."""
        seconds = dict(self.loops)
        behind = [work.get(unit, 0.0) * seconds[unit] for unit in _HIDDEN]
        return max(behind) + sum(n * seconds[unit] for unit, n in work.items() if unit not in _HIDDEN)

    def moving(self, parts: Iterable[tuple[float, float]], threads: int = 1) -> float:
        """The time of ``threads`` cores for arrays of (bytes, reach): so many bytes have gone through the caches since
        somebody touched the array last. Between two working sets that were measured, rates change little by little."""
        seconds = 0.0
        for nbytes, reach in parts:
            rate = _between(self.alone, reach / threads) * threads
            if threads > 1:
                rate = min(rate, _between(self.together, reach) * threads / self.cores)
            seconds += nbytes / rate
        return seconds

    def far(self, nbytes: float) -> float:
        """Seconds that all cores need longer for ``nbytes`` than if their own caches had them."""
        own = next(rate for size, rate in reversed(self.together) if size < _SHARED)
        return max(0.0, nbytes / _at(self.together, nbytes) - nbytes / own)

    def product_seconds(self, nbytes: float, operations: float) -> float:
        """The time of a library call by all cores."""
        return self.call + max(nbytes / _at(self.together, nbytes), operations / self.product)


def _at(rates: tuple[tuple[int, float], ...], nbytes: float) -> float:
    return next((rate for size, rate in rates if nbytes <= size), rates[-1][1])


def _between(rates: tuple[tuple[int, float], ...], reach: float) -> float:
    """The rate at a working set, by the logarithms of those of its neighbours in the table."""
    if reach <= rates[0][0]:
        return rates[0][1]
    for (smaller, fast), (larger, slow) in pairwise(rates):
        if reach <= larger:
            return fast * (slow / fast) ** (log(reach / smaller) / log(larger / smaller))
    return rates[-1][1]


def typical(limits: Limits) -> Rates:
    """Rates of a machine of which only facts are known: those of the reference machine for its cores."""
    alone = ((32 << 10, 120e9), (1 << 20, 60e9), (4 << 20, 30e9), (32 << 20, 15e9), (128 << 20, 9e9))
    together = tuple((size * limits.cores, rate * limits.cores) for size, rate in alone[:2])
    together += ((32 << 20, 25e9), (128 << 20, 16e9))
    return Rates(limits.cores, 3e-8, 3.6e-6 + 0.25e-6 * limits.cores, 1.2e-11, 1e11 * limits.cores, alone, together)


Multiply = Callable[[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, int], object]
_multipliers: dict[str, Callable[[], Multiply | None]] = {}


def register_product(name: str, find: Callable[[], Multiply | None]) -> None:
    """Have the products of library ``name`` measured, too. ``find`` gives what computes a product of two squares of
    float32 (addresses of factors and result, and the edge), or None where the library is missing."""
    _multipliers[name] = find


_time_loops: list[Callable[[], dict[str, float] | None]] = []


def register_loops(measure: Callable[[], dict[str, float] | None]) -> None:
    """Have the seconds of what loops do (``Rates.loops``) measured by ``measure``; None where it cannot."""
    _time_loops[:] = [measure]


_assumed: ContextVar[Rates | None] = ContextVar("daceopt_assumed_rates", default=None)


@contextmanager
def assume(rates: Rates) -> Iterator[None]:
    """Within the block, costs are those of this machine."""
    with scoped(_assumed, rates):
        yield


def rates() -> Rates:
    """Those of this machine, or those assumed; where ``limits.assume`` says another machine, typical ones."""
    other = assumed_limits()
    return _assumed.get() or (_own() if other is None else typical(other))


def _identity() -> str:
    return key(_KIND, _VERSION, facts.fingerprint(), len(_time_loops), facts.march(), *sorted(_multipliers))


_TABLES = "alone", "together", "products", "loops"


@cache
def _own() -> Rates:
    return _RATES.make(_identity(), measure)


def _parse(fields: dict[str, Any]) -> Rates:
    pairs = {name: tuple(map(tuple, fields.pop(name))) for name in _TABLES}
    wrong = [n for n, v in fields.items() if isinstance(v, bool) or not isinstance(v, int | float)]
    if wrong or not all(len(p) == 2 and isinstance(p[1], int | float) for own in pairs.values() for p in own):
        raise ValueError(f"other values than rates: {wrong or pairs}")
    return Rates(**{**fields, **pairs})


_RATES = Values(_KIND, _parse)


def measured_rates() -> Rates | None:
    """Those of this machine, where they have been measured."""
    return _own() if _RATES.find(_identity()) is not None else None


def calibrate() -> Rates:
    """Measure this machine again; what is kept is the best of both."""
    _RATES.keep(_identity(), _own().best(measure()))
    _own.cache_clear()
    return _own()


# -------------------------------------------------------------------- measurement


def measure() -> Rates:
    """Measure in about a second, and what loops do where there is a compiler."""
    cores = facts.cores()
    by_one = {size: _alone(size) for size in _SETS}
    by_all = {size: max(_together(size, cores), by_one[size]) for size in _SETS if size >= _SHARED}
    # one core is no slower by itself than beside the others
    alone = _falling([(size, max(rate, by_all.get(size, 0.0) / cores)) for size, rate in by_one.items()])
    inside = [(size * cores, rate * cores) for size, rate in alone if size * cores < _SHARED]
    region = _region(cores) if cores > 1 else 0.0
    products = tuple(_products(cores).items())
    product = max((rate for _, rate in products), default=typical(Limits(cores)).product)
    together, loops = _falling([*inside, *by_all.items()]), tuple({**dict(LOOPS), **_loops()}.items())
    return Rates(cores, 3e-8, region, _operation(), product, alone, together, products, loops)


def _loops() -> dict[str, float]:
    return next((measure() or {} for measure in _time_loops), {})


def _falling(rates: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """What a larger set reaches, a smaller one reaches, too."""
    best, falling = 0.0, []
    for size, rate in reversed(rates):
        best = max(best, rate)
        falling.append((size, best))
    return tuple(reversed(falling))


def _alone(nbytes: int) -> float:
    """NumPy works with one core; what a call costs before its first element is the same for one."""
    import numpy as np

    source, target = _ordinary(nbytes // 8), _ordinary(nbytes // 8)
    start = least_seconds(lambda: np.negative(source[:1], out=target[:1]), times=100, clock=_OWN)
    patience = _BRIEF if nbytes < _SHARED else _LONG
    times = max(1, _REPEATED // nbytes)
    spent = least_seconds(lambda: np.negative(source, out=target), patience, times, clock=_OWN) - start
    return nbytes / max(spent, nbytes / _FASTEST)


def _ordinary(count: int) -> np.ndarray:
    """Elements of float32 at the start of a line, in pages of the usual size, as those of PyTorch's tensors are: NumPy
    asks for huge ones (two cores of an EPYC, memory to memory: 74 GB/s, where they have 42 else)."""
    import numpy as np

    held = np.frombuffer(bytearray(4 * count + _LINE), np.uint8)
    start = -held.ctypes.data % _LINE
    elements = held[start : start + 4 * count].view(np.float32)
    elements.fill(1.0)  # its pages are there
    return elements


def _together(nbytes: int, cores: int) -> float:
    """What all cores reach at once, each by its own clock: past the time in which others had one of them."""
    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(_alone, [nbytes // cores] * cores))


def _operation() -> float:
    import numpy as np

    x, y = np.ones(_ELEMENTS, np.float32), np.empty(_ELEMENTS, np.float32)
    return least_seconds(lambda: np.tanh(x, out=y), times=20, clock=_OWN) / (_ELEMENTS * _TANH)


def _products(cores: int) -> dict[str, float]:
    """Operations per second of the libraries' products by all cores, each of which multiplies for itself and by its own
    clock: past the time in which others had it. Empty where there is no way to tell a library to take one core."""
    openmp = facts.libgomp()
    calls = {name: multiply for name, find in _multipliers.items() if (multiply := find()) is not None}
    if openmp is None or not calls:
        return {}
    runtime = ctypes.CDLL(str(openmp))

    def turns(_: int) -> list[dict[str, float]]:
        runtime.omp_set_num_threads(1)  # of this thread alone
        return _turns(calls)

    with ThreadPoolExecutor(cores) as pool:
        shortest = _shortest([turn for own in pool.map(turns, range(cores)) for turn in own])
    return {name: cores * 2 * _EDGE**3 / seconds for name, seconds in shortest.items()}


def _turns(calls: Mapping[str, Multiply]) -> list[dict[str, float]]:
    """Seconds of each library's product, several times in turn: what else runs meets them alike."""
    import numpy as np

    operands = [np.ones((_EDGE, _EDGE), np.float32) for _ in range(3)]
    a, b, c = (ctypes.c_void_p(x.ctypes.data) for x in operands)
    return [
        {
            name: least_seconds(partial(multiply, a, b, c, _EDGE), seconds=0.01, clock=_OWN)
            for name, multiply in calls.items()
        }
        for _ in range(_TURNS)
    ]


def _shortest(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The shortest time of each library; that of the fastest for all where it is not the fastest in most turns: then
    the machine is busy, and the order an accident."""
    best = {name: min(turn[name] for turn in turns) for name in turns[0]}
    fastest = min(best, key=best.__getitem__, default="")
    wins = sum(min(turn, key=turn.__getitem__, default="") == fastest for turn in turns)
    return best if wins >= _WINS * len(turns) else dict.fromkeys(best, best[fastest])


def _region(threads: int) -> float:
    """A parallel region in which nothing happens, called past the interpreter; a call of nothing costs as much less."""
    import torch  # brings the OpenMP that programs run on

    expected = typical(Limits(threads)).region
    openmp = facts.libgomp()
    if openmp is None or not torch.get_num_threads():
        return expected
    library, nothing = ctypes.CDLL(str(openmp)), ctypes.CDLL(None).labs
    address = ctypes.cast(nothing, ctypes.c_void_p)
    arguments = (address, ctypes.c_void_p(0), ctypes.c_uint(threads), ctypes.c_uint(0))
    spent = least_seconds(lambda: library.GOMP_parallel(*arguments), _PATIENCE, enough=expected)
    return min(max(spent - least_seconds(lambda: nothing(0), seconds=0.01), 0.0), _BUSY * expected)


_OWN = time.thread_time  # of one thread, past the time in which others had its core


def least_seconds(
    call: Callable[[], object],
    seconds: float = _BRIEF,
    times: int = 1,
    enough: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The shortest of the calls (``times`` at once) that fit into ``seconds`` of ``clock``, or until one takes no more
    than ``enough``: what others do only adds time."""
    call()
    best, count, deadline = float("inf"), 0, clock() + seconds
    while best > enough and (count < _SAMPLES or clock() < deadline):
        start = clock()
        for _ in range(times):
            call()
        best, count = min(best, clock() - start), count + 1
    return best / times
