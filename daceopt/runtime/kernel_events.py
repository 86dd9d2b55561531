"""Kernels of a program as events of ``torch.profiler``, with their names and the modules that they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from daceopt.runtime.executable import Mark
from daceopt.runtime.manifest import Manifest
from daceopt.torch_internals.profiling import ProfilerEvent


@contextmanager
def kernel_events(manifest: Manifest) -> Iterator[Callable[[int], None]]:
    """What one run of the program is to be marked by; an event that an error leaves open ends with the block."""
    kernels = manifest.kernels
    opened: list[ProfilerEvent] = []

    def mark(node: int) -> None:
        if opened:
            opened.pop().__exit__(None, None, None)
        if node < len(kernels):
            opened.append(ProfilerEvent(kernels[node].path))
            opened[-1].__enter__()

    try:
        yield Mark(mark)
    finally:
        mark(len(kernels))
