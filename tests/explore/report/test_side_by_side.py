"""Schedule and C++ beside each other: nothing is lost, columns stand straight, names stay text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from daceopt.explore.report.side_by_side import side_by_side
from daceopt.explore.report.tables import KernelRow

SCHEDULE = "for i0 < 8:\n  vector for i1 < 64:\n    s0(i0, i1)\n"
SOURCE = (
    "void k(const float* p0, float* p1) {\n  for (int64_t i0 = 0; i0 < 8; ++i0) {\n\tp1[i0] = p0[i0];\n  }\n}\n\n//\n"
)
KERNEL = KernelRow("forward", "add", "y", "8 x 64", 1, 1, 1.0, schedule=SCHEDULE, source=SOURCE, origin="block.0")


def columns(text: str) -> tuple[str, str]:
    lines = text.splitlines()
    body = lines[lines.index(next(line for line in lines if line.startswith("---"))) + 1 :]
    (place,) = {line.index(" | ") if " | " in line else line.index(" |") for line in body}
    left, right = (
        "".join(f"{line[part].rstrip()}\n" for line in body) for part in (slice(place), slice(place + 3, None))
    )
    return left.rstrip("\n") + "\n", right


def test_both_are_complete() -> None:
    text = side_by_side(KERNEL)
    assert text.startswith("// forward, add: y\n// from block.0\nschedule ")
    assert columns(text) == (SCHEDULE, SOURCE.replace("\t", "  "))


@pytest.mark.parametrize("width", [70, 80, 120, 500])
def test_long_lines_go_on_below(width: int) -> None:
    text = side_by_side(KERNEL, width)
    assert max(map(len, text.splitlines())) <= width
    left, right = columns(text)
    assert "".join(left.split()) == "".join(SCHEDULE.split()) and "".join(right.split()) == "".join(SOURCE.split())


def test_what_has_no_second_column_stands_alone() -> None:
    call = replace(KERNEL, schedule="")
    assert side_by_side(call) == call.text() and side_by_side(KERNEL, 40) == KERNEL.text()


def test_control_characters_are_shown() -> None:
    text = side_by_side(replace(KERNEL, source="a\x1b[31m\n", label="\x1b]0;x"))
    assert "\x1b" not in text and "a\\x1b[31m" in text
