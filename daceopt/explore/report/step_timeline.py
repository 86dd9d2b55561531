"""Steps of distributed training as HTML, one above the other on one scale of time. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Protocol

from daceopt.explore.report.page import STYLE
from daceopt.explore.report.units import duration

_WIDTH, _ROW, _LEFT, _GAP = 1000, 20, 130, 4
_TICKS = 10
_KINDS = ("computation", "communication", "forward", "backward")  # lanes that have a colour of their own


class Timed(Protocol):
    """What happens from ``start`` to ``end`` in a ``lane``."""

    @property
    def lane(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def start(self) -> float: ...

    @property
    def end(self) -> float: ...


def page(timelines: Mapping[str, Sequence[Timed]], text: str, title: str = "A step of training") -> str:
    """A complete HTML page. ``timelines``: events of each step by what it is called; ``text`` is above them."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    inside = "".join(_parts(timelines, text, title))
    body = f'<div class="daceopt-report"><style>{STYLE}</style>{inside}</div>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body style="margin:0">{body}</body></html>\n'


def _parts(timelines: Mapping[str, Sequence[Timed]], text: str, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1><pre>{escape(text)}</pre>"
    longest = max((e.end for events in timelines.values() for e in events), default=0.0) or 1.0
    for name, events in timelines.items():
        ended = max((e.end for e in events), default=0.0)
        yield f"<h2>{escape(name)}: {escape(duration(ended))}</h2>"
        yield draw(events, longest)


def draw(events: Sequence[Timed], longest: float) -> str:
    """A drawing: lanes below each other, in the order in which they first do something. The box of an event with a
    ``kernel``, its place in a report, shows that kernel."""
    lanes = {lane: k for k, lane in enumerate(dict.fromkeys(e.lane for e in events))}
    height = len(lanes) * (_ROW + _GAP) + 20
    inside = "".join((*_labels(lanes), *(_box(e, lanes[e.lane], longest) for e in events), *_scale(longest, height)))
    return f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" width="100%" role="img">{inside}</svg>'


def _labels(lanes: Mapping[str, int]) -> Iterator[str]:
    for lane, k in lanes.items():
        yield f'<text class="left" x="2" y="{k * (_ROW + _GAP) + 14}">{escape(lane)}</text>'


def _box(event: Timed, row: int, longest: float) -> str:
    x, width = _LEFT + _WIDTH * event.start / longest, _WIDTH * (event.end - event.start) / longest
    kind = next((f" {kind}" for kind in _KINDS if event.lane.startswith(kind)), "")
    text = escape(f"{event.name}: {duration(event.end - event.start)} from {duration(event.start)}")
    place = f'x="{x:.2f}" y="{row * (_ROW + _GAP)}" width="{max(width, 0.2):.2f}" height="{_ROW}"'
    box = f'<rect class="event{kind}" {place}><title>{text}</title></rect>'
    kernel = getattr(event, "kernel", None)
    return box if kernel is None else f'<g data-marks="{kernel}" role="button">{box}</g>'


def _scale(longest: float, height: int) -> Iterator[str]:
    for k in range(_TICKS + 1):
        x = _LEFT + _WIDTH * k / _TICKS
        yield f'<text class="detail" x="{x:.0f}" y="{height - 4}">{escape(duration(longest * k / _TICKS))}</text>'
