"""The roofline of a report: what kernels reach beside what the machine allows them, in SVG that is in the page.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from daceopt.cost.machine import Machine
from daceopt.explore.report.tables import KernelRow, Tables
from daceopt.explore.report.text import computing
from daceopt.explore.report.units import amount, duration, percent

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 300, 74, 16, 14, 34
_MARGIN = 2.0  # of the axes around what is shown, as a factor
_LEAST, _MOST = 2.5, 9.0  # radii
_DECADES = 6.0  # of rates below the roof that are told apart


def section(report: Tables) -> Iterator[str]:
    """Kernels by operations per byte and operations per second; what was not measured stands hollow on its roof.

    Kernels that compute nothing (copies) have no place in it.
    """
    kernels = [(k, kernel) for k, kernel in enumerate(report.kernels) if kernel.flops and kernel.bytes]
    if not kernels or report.machine is None:
        return
    yield "<h2>Roofline</h2>"
    plot = _Plot(report.machine, [kernel for _, kernel in kernels])
    yield f'<div class="scroll"><svg class="roofline" width="{_WIDTH}" height="{_HEIGHT}" role="img"'
    yield ' aria-label="operations per second by operations per byte">'
    yield from plot.grid()
    yield from plot.roofs()
    for k, kernel in kernels:
        yield plot.point(k, kernel)
    yield "</svg></div>"
    yield '<p class="quiet">Operations per second by operations per byte; the larger, the longer it takes. '
    yield "A click shows the kernel.</p>"


class _Plot:
    """Both axes are logarithmic."""

    def __init__(self, machine: Machine, kernels: Sequence[KernelRow]):
        self._machine = machine
        self._longest = max(_seconds(k) for k in kernels)
        self._roofs = computing(machine)
        ridges = [rate / machine.memory_bandwidth for _, rate in self._roofs]
        intensities = [k.flops / k.bytes for k in kernels]
        self._x = min([*intensities, min(ridges) / 8]) / _MARGIN, max([*intensities, max(ridges) * 8]) * _MARGIN
        rates = [k.flops / _seconds(k) for k in kernels]
        top = max([*(rate for _, rate in self._roofs), *rates]) * _MARGIN
        self._y = max(min([*rates, self._x[0] * machine.memory_bandwidth]) / _MARGIN, top / 10**_DECADES), top

    def _place(self, intensity: float, rate: float) -> tuple[float, float]:
        x = _share(intensity, *self._x) * (_WIDTH - _LEFT - _RIGHT)
        y = _share(max(rate, self._y[0]), *self._y) * (_HEIGHT - _TOP - _BOTTOM)
        return _LEFT + x, _HEIGHT - _BOTTOM - y

    def grid(self) -> Iterator[str]:
        for exponent in range(math.ceil(math.log10(self._x[0])), math.floor(math.log10(self._x[1])) + 1):
            x, _ = self._place(10.0**exponent, self._y[0])
            yield f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
            yield f'<text class="detail" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 14}">{10.0**exponent:g} flop/B</text>'
        for exponent in range(math.ceil(math.log10(self._y[0])), math.floor(math.log10(self._y[1])) + 1):
            _, y = self._place(self._x[0], 10.0**exponent)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            text = escape(amount(10.0**exponent, "flop/s"))
            yield f'<text class="detail left" x="2" y="{y + 4:.1f}">{text}</text>'

    def roofs(self) -> Iterator[str]:
        """Of memory and of the smallest cache that was measured, for each kind of element that has a rate."""
        machine = self._machine
        for what, flops in self._roofs:
            for name, bandwidth in (("memory", machine.memory_bandwidth), ("caches", machine.cache_bandwidth)):
                points = [(self._x[0], self._x[0] * bandwidth), (flops / bandwidth, flops), (self._x[1], flops)]
                path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (self._place(*p) for p in points if p[1] >= self._y[0]))
                rates = f"{name}: {amount(bandwidth, 'B/s')}, {amount(flops, 'flop/s')}"
                text = escape(f"{rates} in {what}" if machine.is_device else rates)
                yield f'<path class="roof {name}" d="M{path}"><title>{text}</title></path>'

    def point(self, k: int, kernel: KernelRow) -> str:
        seconds = _seconds(kernel)
        x, y = self._place(kernel.flops / kernel.bytes, kernel.flops / seconds)
        radius = _LEAST + (_MOST - _LEAST) * math.sqrt(seconds / self._longest)
        is_timed = kernel.seconds is not None
        time = (
            f"{duration(seconds)}, {percent(kernel.share)} of the limit"
            if is_timed
            else f"at least {duration(seconds)}"
        )
        text = escape(f"{kernel.label} ({kernel.direction}): {time}, {amount(kernel.flops / seconds, 'flop/s')}")
        look = f"kernel {kernel.direction}{'' if is_timed else ' hollow'}"
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        return f'<g class="{look}" data-marks="{k}" role="button"><circle {place}><title>{text}</title></circle></g>'


def _seconds(kernel: KernelRow) -> float:
    """Measured, or the least that the machine allows."""
    return max(kernel.limit if kernel.seconds is None else kernel.seconds, 1e-12)


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)
