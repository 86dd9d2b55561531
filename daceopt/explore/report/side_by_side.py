"""Schedule and C++ of a kernel beside each other, for a terminal."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence

from daceopt.explore.report.tables import KernelRow
from daceopt.explore.report.units import printable

_BETWEEN = " | "
_LEAST = 30  # characters of a column


def side_by_side(kernel: KernelRow, width: int | None = None) -> str:
    """What ``kernel.text()`` says, in two columns of ``width`` characters together; None: as wide as the longest lines.

    Lines that are too long go on below, indented. What has no schedule (a library call) stands alone, and so do columns
    for which there is no room.
    """
    if not kernel.schedule or not kernel.source:
        return kernel.text()
    left, right = (_lines(text) for text in (kernel.schedule, kernel.source))
    first, second = (max(map(len, lines), default=0) for lines in (left, right))
    if width is not None:
        if width < 2 * _LEAST + len(_BETWEEN):
            return kernel.text()
        first = min(first, max(_LEAST, width - len(_BETWEEN) - second, width // 2 - len(_BETWEEN)))
        second = width - len(_BETWEEN) - first
    columns = (list(_fold(lines, size)) for lines, size in ((left, first), (right, second)))
    rows = [("schedule", "C++"), ("-" * first, "-" * min(second, width or second)), *_pair(*columns)]
    body = (f"{a:<{first}}{_BETWEEN}{b}".rstrip() for a, b in rows)
    return "\n".join([*kernel.head(), *body])


def _lines(text: str) -> list[str]:
    return [printable(line.expandtabs(2)) for line in text.rstrip("\n").split("\n")]


def _fold(lines: Sequence[str], size: int) -> Iterator[str]:
    for line in lines:
        if len(line) <= size:
            yield line
            continue
        indent = " " * min(len(line) - len(line.lstrip()) + 4, size // 2)
        fold = textwrap.TextWrapper(size, subsequent_indent=indent, drop_whitespace=False, break_on_hyphens=False)
        yield from fold.wrap(line)


def _pair(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str, str]]:
    return itertools.zip_longest(left, right, fillvalue="")
