"""A simulation as HTML: what lives in the buffers and what each unit does, over time. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from daceopt.cost.simulator import Run
from daceopt.explore.report.page import SORT, STYLE
from daceopt.explore.report.units import amount, duration, percent

_WIDTH, _HEIGHT, _ROW, _LEFT = 1000, 90, 18, 90
_BINS = 500  # of a drawing: more than a screen shows apart
_ROWS = 400  # of the table
_DRAWN = """
.daceopt-report svg .area { fill: var(--bar); opacity: 0.6; stroke: none }
.daceopt-report svg .limit { stroke: var(--bad); stroke-dasharray: 4 3 }
.daceopt-report svg .work { fill: var(--bar); stroke: none }
.daceopt-report svg text.left { text-anchor: start; font-size: 11px }
"""


def document(title: str, run: Run, text: str) -> str:
    """A complete HTML page."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title>'
    body = f'<body style="margin:0">{fragment(title, run, text)}</body>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n'


def fragment(title: str, run: Run, text: str) -> str:
    """What a notebook shows below a cell."""
    parts = "".join((*_head(title, run, text), *_buffers(run), *_units(run), *_layers(run)))
    return f'<div class="daceopt-report"><style>{STYLE}{_DRAWN}</style>{parts}</div>'


def _head(title: str, run: Run, text: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield f"<pre>{escape(text)}</pre>"
    yield '<div class="tiles">'
    tiles = {"cycles": f"{run.cycles:,}", "time": duration(run.seconds), "kernels": str(run.kernels)}
    tiles |= {f"{level} traffic": amount(size, "B") for level, size in run.traffic.items()}
    yield from (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in tiles.items()
    )
    yield "</div>"


# -------------------------------------------------------------------- drawings


def _buffers(run: Run) -> Iterator[str]:
    """Bytes alive in the buffers while each layer runs: layers side by side, each as wide as the others."""
    yield "<h2>Buffers, layer by layer</h2>"
    limits = run.machine.local_size, run.machine.shared.size
    for name, limit, sizes in zip(("local", "shared"), limits, zip(*run.occupancy)):
        top = max(limit, *sizes)
        step = _WIDTH / max(len(sizes), 1)
        points = " ".join(
            f"{_LEFT + x:.1f},{_HEIGHT * (1 - size / top):.1f}"
            for k, size in enumerate(sizes)
            for x in (k * step, (k + 1) * step)
        )
        area = f'<polygon class="area" points="{_LEFT},{_HEIGHT} {points} {_LEFT + _WIDTH},{_HEIGHT}"/>'
        at = _HEIGHT * (1 - limit / top)
        line = f'<line class="limit" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield _drawing(_HEIGHT + 6, area + line + _text(14, name) + _text(30, amount(limit, "B")))


def _units(run: Run) -> Iterator[str]:
    """How busy each unit is, over time: as high as its share of each moment."""
    yield f"<h2>Units over {duration(run.seconds)}</h2>"
    step = _WIDTH / _BINS
    for unit, shares in sorted(occupancy(run).items()):
        bars = "".join(
            f'<rect class="work" x="{_LEFT + k * step:.1f}" y="{_ROW * (1 - share):.1f}" width="{step:.1f}" '
            f'height="{_ROW * share:.1f}"/>'
            for k, share in enumerate(shares)
            if share > 0.01
        )
        yield _drawing(_ROW + 4, bars + _text(13, f"{unit} {percent(run.busy[unit])}"))


def _drawing(height: int, inside: str) -> str:
    return f'<div class="scroll"><svg width="{_LEFT + _WIDTH}" height="{height}">{inside}</svg></div>'


def _text(y: int, text: str) -> str:
    return f'<text class="left" x="0" y="{y}">{escape(text)}</text>'


def occupancy(run: Run, bins: int = _BINS) -> dict[str, list[float]]:
    """Unit -> the share of each of ``bins`` equal moments in which it works."""
    width = run.seconds / bins if run.seconds else 1.0
    shares: dict[str, list[float]] = {}
    for event in run.events:
        row = shares.setdefault(event.unit, [0.0] * bins)
        for k in range(int(event.start / width), min(bins, int(event.end / width) + 1)):
            row[k] += max(0.0, min(event.end, (k + 1) * width) - max(event.start, k * width)) / width
    return {unit: [min(1.0, share) for share in row] for unit, row in shares.items()}


# -------------------------------------------------------------------- the table


def _layers(run: Run) -> Iterator[str]:
    more = f", the first {_ROWS}" if len(run.layers) > _ROWS else ""
    yield f'<details open><summary>{len(run.layers)} layers{more}</summary><div class="scroll"><table>'
    heads = ("layer", "kernel", "result in", "cores", "operations", "bytes read", "bytes written")
    yield f"<thead><tr>{''.join(f'<th>{h}</th>' for h in heads)}</tr></thead><tbody>"
    for layer in run.layers[:_ROWS]:
        placed = [run.placements[name] for name in layer.writes]
        read, written = sum(layer.reads.values()), sum(layer.writes.values())
        bound = "x".join(str(n) for n in placed[0].binding) if placed else ""
        texts = (layer.label, str(layer.kernel), ", ".join(dict.fromkeys(p.level for p in placed)), bound)
        work = sum(layer.work.values())
        numbers = ((work, ""), (read, "B"), (written, "B"))
        cells = "".join(f"<td>{escape(t)}</td>" for t in texts)
        cells += "".join(f'<td class="number" data-order="{n}">{amount(n, unit)}</td>' for n, unit in numbers)
        yield f"<tr>{cells}</tr>"
    yield f"</tbody></table><script>{SORT}</script></div></details>"
