"""Where the time of a call goes, as lines of text and as HTML. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from daceopt.explore.report import advice
from daceopt.explore.report.tables import CallRow, Tables
from daceopt.explore.report.units import duration, percent, sentence

REST = "not told apart"
_WIDTH, _HEIGHT, _COLOURS = 760, 22, 8


def heading(call: CallRow) -> str:
    """``a steady call: 1.2 ms``."""
    return f"a steady {call.name}: {duration(call.seconds)}"


def rows(call: CallRow) -> list[tuple[str, str, str]]:
    """Each part with its time and its share, the largest first."""
    parts = [*call.parts.items(), (REST, call.rest)]
    return [(name, _with_sign(spent), percent(spent / call.seconds)) for name, spent in parts if _is_seen(call, spent)]


def lines(report: Tables) -> list[str]:
    """What to do first, numbered."""
    return [f"{k}. {advice.text(one, report)}" for k, one in enumerate(report.advice, 1)]


def section(report: Tables) -> Iterator[str]:
    """HTML: what to do first, and a bar for each call with its parts below."""
    if report.advice:
        yield "<h2>What to do first</h2><ol>"
        yield from (f"<li>{escape(sentence(advice.text(one, report)))}</li>" for one in report.advice)
        yield "</ol>"
    for call in report.calls:
        yield f"<h2>{escape(sentence(heading(call)))}</h2>"
        yield _bar(call)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(call))
        head = "<tr><th>part</th><th>time</th><th>share</th></tr>"
        yield f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _bar(call: CallRow) -> str:
    total, x, boxes = sum(call.parts.values()) or 1.0, 0.0, []
    for k, (name, spent) in enumerate(call.parts.items()):
        width = _WIDTH * spent / total
        place = f'x="{x:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}"'
        hint = escape(f"{name}: {duration(spent)}")
        boxes.append(f'<rect class="event share{k % _COLOURS}" {place}><title>{hint}</title></rect>')
        x += width
    label = escape(heading(call))
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">{"".join(boxes)}</svg>'


def _with_sign(seconds: float) -> str:
    return duration(seconds) if seconds >= 0 else f"-{duration(-seconds)}"


def _is_seen(call: CallRow, spent: float) -> bool:
    return abs(spent) >= 0.0005 * call.seconds
