"""Graphs of calls where there is no device: a call is started again with the addresses that it had."""

from __future__ import annotations

from collections.abc import Callable

import torch

from daceopt.runtime.device_graphs import CallGraphs


class Replayed:
    """A start that is kept, as a graph keeps the addresses of its kernels."""

    def __init__(self, start: Callable[[], None]) -> None:
        self.launch = start
        self.released = 0

    def release(self) -> None:
        self.released += 1


def kept(made: list[CallGraphs]) -> Callable[[torch.device, int], CallGraphs]:
    """What gives programs graphs that are ``Replayed``; all are put into ``made``."""

    def make(device: torch.device, kernels: int) -> CallGraphs:
        made.append(CallGraphs(device, Replayed))
        return made[-1]

    return make
