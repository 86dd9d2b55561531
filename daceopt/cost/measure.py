"""Interleaved timing: on a shared machine only ratios of runs that alternate mean anything."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from daceopt.torch_internals import cuda_state

if TYPE_CHECKING:
    import torch

_CYCLES = 5_000_000  # of a device's clock, in which the host starts a call


class Elapsed(float):
    """Seconds that a function took by a clock of its own, of another process or a device: what it returns instead of
    results."""


def on_stream(
    call: Callable[[], object], ahead: bool = False, device: torch.device | None = None
) -> Callable[[], Elapsed]:
    """``call`` as it is measured on a CUDA device (the current one by default): seconds between two marks on its
    current stream, for which only the measurement waits.

    ``ahead``: the device is busy until all has been started, so that the host's time does not count.
    """
    import torch

    def time_call() -> Elapsed:
        with torch.cuda.device(device):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if ahead:
                cuda_state.spin(_CYCLES)
            first.record()
            call()
            last.record()
            last.synchronize()
        return Elapsed(first.elapsed_time(last) / 1e3)

    return time_call


def interleave(
    functions: Mapping[str, Callable[[], object]], *, seconds: float = 2.0, warmup: int = 2, at_least: int = 5
) -> dict[str, float]:
    """Median seconds of one call of each function; the functions take turns until ``seconds`` per function are spent.

    Each runs ``warmup`` times first and at least ``at_least`` times under the clock.
    """
    rounds = sample(functions, seconds=seconds, warmup=warmup, at_least=at_least)
    return {name: statistics.median(values) for name, values in rounds.items()}


def sample(
    functions: Mapping[str, Callable[[], object]], *, seconds: float = 2.0, warmup: int = 2, at_least: int = 5
) -> dict[str, list[float]]:
    """Seconds of the calls of each function, round by round, as :func:`interleave` has them take turns.

    Each round has another order: a call finds the caches as the one before it has left them, and a long one leaves
    nothing in them.
    """
    order, turns = random.Random(0), list(functions.items())
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(warmup):
            function()
    deadline = time.perf_counter() + seconds * max(1, len(functions))
    rounds = 0
    while rounds < at_least or time.perf_counter() < deadline:
        order.shuffle(turns)
        for name, function in turns:
            start = time.perf_counter()
            result = function()
            elapsed = float(result) if isinstance(result, Elapsed) else None
            del result  # giving memory back belongs to who took it, not to the next one's time
            samples[name].append(time.perf_counter() - start if elapsed is None else elapsed)
        rounds += 1
    return samples
