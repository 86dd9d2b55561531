"""The roofline plot: kernels stand where their numbers say, below the roofs, whatever the numbers are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from daceopt.explore.report import kernel_timeline, roofline_plot
from daceopt.explore.report.report import Report
from daceopt.explore.report.tables import KernelRow
from tests.explore.report.test_display import HOSTILE, MACHINE


def report(*kernels: KernelRow) -> Report:
    return Report("model", kernels=list(kernels), machine=MACHINE)


def row(nbytes: int, flops: int, seconds: float | None = None, label: str = "k") -> KernelRow:
    return KernelRow("forward", label, "y", "", nbytes, flops, MACHINE.seconds(nbytes, flops), seconds)


def points(found: Report) -> list[tuple[float, float, float]]:
    html = "".join(roofline_plot.section(found))
    return [tuple(map(float, p)) for p in re.findall(r'<circle cx="(\S+)" cy="(\S+)" r="(\S+)"', html)]


def test_more_operations_per_byte_stand_to_the_right_and_faster_ones_higher() -> None:
    slow, fast, dense = points(report(row(10**6, 10**6, 1e-3), row(10**6, 10**6, 1e-4), row(10**6, 10**8, 1e-3)))
    assert slow[0] == fast[0] < dense[0] and fast[1] < slow[1] and dense[1] < slow[1]
    assert slow[2] == dense[2] > fast[2], "the longer, the larger"


@pytest.mark.parametrize("nbytes", [1, 10**3, 10**12])
@pytest.mark.parametrize("flops", [1, 10**6, 10**15])
@pytest.mark.parametrize("seconds", [None, 1e-9, 1e3])
def test_whatever_the_numbers_are_points_stand_in_the_drawing(nbytes: int, flops: int, seconds: float | None) -> None:
    for x, y, _ in points(report(row(nbytes, flops, seconds), row(10**6, 10**6, 1e-3))):
        assert 0 <= x <= 760 and 0 <= y <= 300


def test_what_was_not_measured_stands_hollow_on_its_roof() -> None:
    html = "".join(roofline_plot.section(report(row(10**6, 10**6))))
    assert 'class="kernel forward hollow"' in html and "at least" in html


def test_there_is_no_plot_without_numbers() -> None:
    assert not list(roofline_plot.section(report(row(10**6, 0))))
    assert not list(roofline_plot.section(replace(report(row(1, 1)), machine=None)))
    assert not list(kernel_timeline.section(report(row(1, 1))))


def test_the_timeline_has_each_kernel_as_long_as_it_took() -> None:
    html = "".join(kernel_timeline.section(report(row(1, 1, 1e-3), row(1, 1, None), row(1, 1, 3e-3))))
    assert [float(w) for w in re.findall(r'width="([\d.]+)" height="20"', html)] == [250.0, 750.0]
    assert re.findall(r'data-marks="(\d)"', html) == ["0", "2"] and "4 ms in kernels" in html


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped(name: str) -> None:
    found = report(row(1, 1, 1e-3, name))
    html = "".join((*roofline_plot.section(found), *kernel_timeline.section(found)))
    assert "<script" not in html and "<img" not in html and "</style>" not in html
