"""What a CUDA device can do at best: copies for each working set around its L2 cache, and large matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial

import torch

from daceopt.cost.machine import Machine, best_known, by_working_set, this_machine
from daceopt.cost.measure import on_stream
from daceopt.runtime.device_precision import uses_tf32

_L2 = 32 << 20  # where torch does not say
_SETS = (0.125, 0.5, 1.0, 8.0)  # bytes that a copy touches, by those of the L2 cache; the last is memory
_COPIES = 10  # under the clock at once: its marks cost as much as a small copy
_GEMM = 4096
_AT_LEAST = 3
_TYPES = (torch.bfloat16, torch.float64)  # of products whose rates are not that of float32


def machine_of(device: torch.device) -> Machine:
    """The limits of a CUDA device (the current one, if none is said) as torch's switches for TF32 are now, measured
    once and kept like those of this machine, which are those of any other device."""
    if device.type != "cuda":
        return this_machine()
    return _lookup(torch.cuda.current_device() if device.index is None else device.index, uses_tf32())


@cache
def _lookup(index: int, tf32: bool) -> Machine:
    identity = (torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), torch.version.cuda)
    return best_known([*identity, torch.__version__, tf32], measure(index, tf32))


def measure(index: int, tf32: bool) -> Machine:
    """The limits of CUDA device number ``index``, whose products of float32 are as torch's switches are now: ``tf32``.

    It takes some tenths of a second, and memory as much as eight L2 caches.
    """
    device = torch.device("cuda", index)
    l2 = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or _L2
    sizes = [int(share * l2) for share in _SETS]
    with torch.no_grad():
        bandwidths = by_working_set(sizes, [_copy_bandwidth(size // 2, device) for size in sizes])
        flops, *others = [_gemm_rate(dtype, device) for dtype in (torch.float32, *_TYPES)]
    rates = tuple((dtype.itemsize, rate) for dtype, rate in zip(_TYPES, others))
    name = torch.cuda.get_device_name(device)
    return Machine(name, 0, 0, l2, 0, bandwidths, flops, rates, "TF32" if tf32 else "float32")


def _copy_bandwidth(nbytes: int, device: torch.device) -> float:
    source, target = (torch.ones(nbytes // 4, device=device) for _ in range(2))

    def copies() -> None:
        for _ in range(_COPIES):
            target.copy_(source)

    return 2 * nbytes * _COPIES / _best(copies, device)


def _gemm_rate(dtype: torch.dtype, device: torch.device) -> float:
    draw = torch.Generator(device).manual_seed(0)  # nobody else's numbers move on
    a, b, out = (torch.randn(_GEMM, _GEMM, generator=draw, device=device).to(dtype) for _ in range(3))
    return 2 * _GEMM**3 / _best(partial(torch.mm, a, b, out=out), device)


def _best(call: Callable[[], object], device: torch.device, seconds: float = 0.05) -> float:
    """The shortest of the calls that fit into ``seconds``, or of a few, after one that warms up, by the device's own
    clock."""
    clocked = on_stream(call, ahead=True, device=device)
    clocked()
    times, deadline = [float(clocked()) for _ in range(_AT_LEAST)], time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        times.append(float(clocked()))
    return max(min(times), 1e-9)
