"""Graphs of calls where there is no device: a call is started again with the addresses that it had."""

from __future__ import annotations

from collections.abc import Callable

import torch

from daceopt.runtime.device_graphs import CallGraphs, Recorded, Start


class Replayed:
    """A start that is kept, as a graph keeps the addresses of its kernels."""

    def __init__(self, start: Start, seeded: bool) -> None:
        self._start = start
        self._seeds = torch.zeros(1, dtype=torch.int64) if seeded else None
        self.released = 0

    def launch(self, seed: int | None) -> None:
        if self._seeds is not None:
            assert seed is not None
            self._seeds.fill_(seed)
        self._start(self._seeds)

    def release(self) -> None:
        self.released += 1


def kept(made: list[CallGraphs]) -> Callable[[torch.device, int], CallGraphs]:
    """What gives programs graphs that are ``Replayed``; all are put into ``made``."""

    def make(device: torch.device, kernels: int) -> CallGraphs:
        def record(start: Start, seeded: bool) -> Recorded:
            return Replayed(start, seeded)

        made.append(CallGraphs(record))
        return made[-1]

    return make
