"""Steps of distributed training as HTML, one above the other on one scale of time. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from daceopt.explore.page import STYLE
from daceopt.explore.units import duration

if TYPE_CHECKING:
    from daceopt.distributed.step_simulator import StepEvent

_WIDTH, _ROW, _LEFT, _GAP = 1000, 20, 130, 4
_TICKS = 10
_COLOURS = {"computation": "#4878a8", "communication": "#c1663d"}
_DRAWN = """
.daceopt-report svg rect.event { stroke: var(--page, #fff); stroke-width: 0.4 }
.daceopt-report svg rect.event:hover { opacity: 0.6 }
.daceopt-report svg text.left { text-anchor: start; font-size: 11px }
"""


def page(timelines: Mapping[str, Sequence[StepEvent]], text: str, title: str = "A step of training") -> str:
    """A complete HTML page. ``timelines``: events of each step by what it is called; ``text`` stands above them."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    inside = "".join(_parts(timelines, text, title))
    body = f'<div class="daceopt-report"><style>{STYLE}{_DRAWN}</style>{inside}</div>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body style="margin:0">{body}</body></html>\n'


def _parts(timelines: Mapping[str, Sequence[StepEvent]], text: str, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1><pre>{escape(text)}</pre>"
    longest = max((e.end for events in timelines.values() for e in events), default=0.0) or 1.0
    for name, events in timelines.items():
        ended = max((e.end for e in events), default=0.0)
        yield f"<h2>{escape(name)}: {escape(duration(ended))}</h2>"
        yield _drawing(events, longest)


def _drawing(events: Sequence[StepEvent], longest: float) -> str:
    """Lanes below each other, in the order in which they first do something."""
    lanes = {lane: k for k, lane in enumerate(dict.fromkeys(e.lane for e in events))}
    height = len(lanes) * (_ROW + _GAP) + 20
    inside = "".join((*_labels(lanes), *(_box(e, lanes[e.lane], longest) for e in events), *_scale(longest, height)))
    return f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" width="100%" role="img">{inside}</svg>'


def _labels(lanes: Mapping[str, int]) -> Iterator[str]:
    for lane, k in lanes.items():
        yield f'<text class="left" x="2" y="{k * (_ROW + _GAP) + 14}">{escape(lane)}</text>'


def _box(event: StepEvent, row: int, longest: float) -> str:
    x, width = _LEFT + _WIDTH * event.start / longest, _WIDTH * (event.end - event.start) / longest
    colour = next((c for kind, c in _COLOURS.items() if event.lane.startswith(kind)), "#7a7a7a")
    said = escape(f"{event.name}: {duration(event.end - event.start)} from {duration(event.start)}")
    place = f'x="{x:.2f}" y="{row * (_ROW + _GAP)}" width="{max(width, 0.2):.2f}" height="{_ROW}"'
    return f'<rect class="event" {place} fill="{colour}"><title>{said}</title></rect>'


def _scale(longest: float, height: int) -> Iterator[str]:
    for k in range(_TICKS + 1):
        x = _LEFT + _WIDTH * k / _TICKS
        yield f'<text x="{x:.0f}" y="{height - 4}" font-size="10">{escape(duration(longest * k / _TICKS))}</text>'
