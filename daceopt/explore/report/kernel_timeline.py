"""The programs of a report over time, kernel after kernel as they ran."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from daceopt.explore.report.step_timeline import draw
from daceopt.explore.report.tables import KernelRow, Tables
from daceopt.explore.report.units import duration


class KernelEvent(NamedTuple):
    """A kernel while its program runs; ``kernel``: its place in the report."""

    lane: str
    name: str
    start: float
    end: float
    kernel: int


def section(report: Tables) -> Iterator[str]:
    """The programs of a report, kernel after kernel as they ran; nothing where they were not measured."""
    events = list(_kernels([k for k in enumerate(report.kernels) if k[1].seconds is not None]))
    if not events:
        return
    yield f"<h2>Timeline of a step: {escape(duration(events[-1].end))} in kernels</h2>"
    yield draw(events, events[-1].end or 1.0)


def _kernels(kernels: Sequence[tuple[int, KernelRow]]) -> Iterator[KernelEvent]:
    spent = [kernel.seconds or 0.0 for _, kernel in kernels]
    for (k, kernel), seconds, end in zip(kernels, spent, itertools.accumulate(spent), strict=True):
        yield KernelEvent(kernel.direction, kernel.label, end - seconds, end, k)
