"""What a program holds while it runs, as a timeline: rows of a report, lines of text, and a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from daceopt.explore.report.tables import MemoryRow, Tables
from daceopt.explore.report.units import amount, sentence

if TYPE_CHECKING:
    from daceopt.codegen.working_memory import WorkingMemory

_WINDOWS = 24  # lines of text
_BAR = 24  # characters
_WIDTH, _HEIGHT = 760, 120


def rows(memory: WorkingMemory) -> list[MemoryRow]:
    """One row per node in the order in which they run."""
    result = []
    for direction in memory.directions:
        for moment in direction.moments:
            largest = ", ".join(f"{name} {amount(size, 'B')}" for name, size in moment.alive[:3])
            result.append(MemoryRow(direction.name, moment.node, moment.bytes, largest))
    return result


def heading(report: Tables) -> str:
    """``memory: at most 8 MB, of it 6 MB saved for the backward``."""
    saved = f", of it {amount(report.saved, 'B')} saved for the backward" if report.saved else ""
    return f"memory: at most {amount(report.peak, 'B')}{saved}"


def lines(report: Tables) -> list[tuple[str, ...]]:
    """The timeline in at most ``_WINDOWS`` rows: of each window the node during which most is alive."""
    step = -(-len(report.memory) // _WINDOWS) or 1
    fullest = [max(window, key=lambda r: r.bytes) for window in _windows(report.memory, step)]
    return [
        (r.direction, r.node, amount(r.bytes, "B"), "#" * round(_BAR * r.bytes / max(report.peak, 1)), r.largest)
        for r in fullest
    ]


def _windows(rows: Sequence[MemoryRow], size: int) -> Iterator[Sequence[MemoryRow]]:
    return (rows[k : k + size] for k in range(0, len(rows), size))


def section(report: Tables) -> Iterator[str]:
    """HTML: bytes that are alive over the nodes of the program, each with its name and what it holds as a title."""
    if not report.peak:
        return
    yield f"<h2>{escape(sentence(heading(report)))}</h2>"
    width = _WIDTH / max(len(report.memory), 1)
    yield f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(heading(report))}">'
    for k, row in enumerate(report.memory):
        height = _HEIGHT * min(row.bytes / report.peak, 1.0)
        text = f"{row.direction}, {row.node}: {amount(row.bytes, 'B')}; {row.largest}"
        yield f"<g{' class=part' if row.direction == 'backward' else ''}>"
        yield f'<rect x="{k * width:.2f}" y="{_HEIGHT - height:.1f}" width="{width:.2f}" height="{height:.1f}">'
        yield f"<title>{escape(text)}</title></rect></g>"
    yield "</svg>"
