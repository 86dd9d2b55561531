"""A report as HTML that needs no other file: a page of its own, or a fragment for notebooks. Every text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple, TypeVar

from daceopt.explore.report import Kernel, Operator, Report, Step
from daceopt.explore.text import idle_steps, limits, title
from daceopt.explore.units import amount, change, duration, percent, plural

Row = TypeVar("Row")


class Cell(NamedTuple):
    """What a table shows, and the number it sorts by (None: by its text)."""

    html: str
    order: float | None = None


class Column(NamedTuple):
    """A heading, and whether it holds numbers."""

    name: str
    numeric: bool = False


def to_document(report: Report) -> str:
    """A complete HTML page."""
    head = f'<meta charset="utf-8"><title>{escape(report.title)}</title>'
    body = f'<body style="margin:0">{to_fragment(report)}</body>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n'


def to_fragment(report: Report) -> str:
    """What a notebook shows below a cell."""
    sections = (_head, _tiles, _kernel_tables, _step_table, _operator_table, _foot)
    parts = "".join(part for section in sections for part in section(report))
    return f'<div class="daceopt-report"><style>{_STYLE}</style>{parts}<script>{_SORT}</script></div>'


# -------------------------------------------------------------------- around the tables


def _head(report: Report) -> Iterator[str]:
    yield f"<h1>{escape(report.title)}</h1>"
    said = [report.mode, f"recipe {report.recipe or 'none'}", *report.inputs]
    yield f'<p class="quiet">{escape(" · ".join(said))}</p>'
    if report.reason:
        yield f'<p class="warning"><b>Runs outside of compiled code.</b> {escape(report.reason)}</p>'
    for note in report.notes:
        yield f'<p class="note">{escape(note)}</p>'


def _tiles(report: Report) -> Iterator[str]:
    if not report.kernels:
        return
    yield '<div class="tiles">'
    yield _tile("kernels", f"{report.nodes[1]}", f"{report.nodes[0]} before the recipe")
    yield _tile("bytes moved", amount(report.bytes_moved[1], "B"), f"{amount(report.bytes_moved[0], 'B')} before")
    for direction in ("forward", "backward"):
        found = [k for k in report.of(direction) if k.seconds is not None]
        if found:
            seconds, limit = sum(k.seconds or 0 for k in found), sum(k.limit for k in found)
            yield _tile(
                f"{direction}, in kernels", duration(seconds), f"{percent(limit / seconds)} of the machine's limit"
            )
    fallbacks = sum(o.count for o in report.fallbacks)
    yield _tile("operators", f"{sum(o.count for o in report.operators)}", plural(fallbacks, "fallback"))
    origin = "from the cache" if report.cached else "compiled just now"
    yield _tile("compilation", duration(sum(report.seconds.values())), origin)
    yield "</div>"


def _tile(name: str, value: str, detail: str) -> str:
    return f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(detail)}</span></div>'


def _foot(report: Report) -> Iterator[str]:
    if report.seconds:
        phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in report.seconds.items())
        yield f'<p class="quiet">Compilation: {escape(phases)}.</p>'
    if report.machine:
        yield f'<p class="quiet">Limits of this machine: {escape(limits(report.machine))}.</p>'


# -------------------------------------------------------------------- tables


def _kernel_tables(report: Report) -> Iterator[str]:
    columns = [
        Column("kernel"),
        Column("time", True),
        Column("share of the machine's limit"),
        Column("bytes", True),
        Column("flops", True),
        Column("by"),
        Column("contents"),
    ]
    for direction in ("forward", "backward"):
        found = report.of(direction)
        if found:
            yield f"<h2>{escape(title(direction, found).capitalize())}</h2>"
            longest = max((k.seconds or 0 for k in found), default=0)
            yield _table(columns, found, lambda kernel, longest=longest: _kernel(kernel, longest))  # type: ignore[misc]


def _kernel(kernel: Kernel, longest: float) -> list[Cell]:
    time = "-" if kernel.seconds is None else escape(duration(kernel.seconds))
    weight = (kernel.seconds or 0) / longest if longest else 0
    origin = f"from {kernel.origin}" if kernel.origin else ""
    return [
        Cell(f"<b>{escape(kernel.label)}</b>{_quiet(kernel.writes)}{_quiet(origin)}"),
        Cell(f'{time}<div class="weight" style="width:{weight * 100:.0f}%"></div>', kernel.seconds or 0),
        Cell(_bar(kernel), kernel.share or 0),
        Cell(escape(amount(kernel.bytes, "B")), kernel.bytes),
        Cell(escape(amount(kernel.flops)), kernel.flops),
        Cell(f'{escape(kernel.library or "generated")}<div class="quiet">{escape(kernel.why)}</div>'),
        Cell(escape(kernel.contents) + _unfolding("schedule", kernel.schedule) + _unfolding("C++", kernel.source)),
    ]


def _quiet(text: str) -> str:
    return f'<div class="quiet">{escape(text)}</div>' if text else ""


def _unfolding(name: str, text: str) -> str:
    """What stands behind a row, which a click shows."""
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>" if text else ""


def _bar(kernel: Kernel) -> str:
    if kernel.share is None:
        return f'<span class="quiet">at least {escape(duration(kernel.limit))}</span>'
    width = min(1.0, kernel.share) * 100
    hint = f"at least {duration(kernel.limit)} by bytes and flops"
    return (
        f'<div class="bar" title="{escape(hint)}"><div style="width:{width:.1f}%"></div></div>'
        f'<span class="share">{escape(percent(kernel.share))}</span>'
    )


def _step_table(report: Report) -> Iterator[str]:
    busy = [s for s in report.steps if s.sites]
    if busy:
        yield "<h2>Recipe</h2>"
        columns = [Column("step"), Column("level"), Column("on"), Column("time", True), Column("sites", True)]
        yield _table([*columns, Column("nodes", True), Column("bytes", True)], busy, _step)
    idle = idle_steps(report)
    if idle:
        yield f'<p class="quiet">Found no site: {escape(", ".join(idle))}.</p>'


def _step(step: Step) -> list[Cell]:
    return [
        Cell(f"<b>{escape(step.name)}</b>"),
        Cell(escape(step.level)),
        Cell(escape(step.direction)),
        Cell(escape(duration(step.seconds)), step.seconds),
        Cell(str(step.sites), step.sites),
        Cell(escape(change(*step.nodes)), step.nodes[1] - step.nodes[0]),
        Cell(escape(change(*step.bytes, "B")), step.bytes[1] - step.bytes[0]),
    ]


def _operator_table(report: Report) -> Iterator[str]:
    if report.operators:
        yield "<h2>Operators of the model</h2>"
        columns = [Column("operator"), Column("count", True), Column("how"), Column("reason")]
        shown = columns if any(o.reason for o in report.operators) else columns[:-1]
        yield _table(shown, report.operators, _operator)


def _operator(operator: Operator) -> list[Cell]:
    return [
        Cell(f"<b>{escape(operator.name)}</b>"),
        Cell(str(operator.count), operator.count),
        Cell(f'<span class="how {escape(operator.how)}">{escape(operator.how)}</span>'),
        Cell(escape(operator.reason)),
    ]


def _table(columns: Sequence[Column], rows: Sequence[Row], cells: Callable[[Row], list[Cell]]) -> str:
    heads = "".join(f'<th class="{"number" if c.numeric else ""}" tabindex="0">{escape(c.name)}</th>' for c in columns)
    body = "".join(f"<tr>{''.join(map(_cell, cells(row), columns))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell, column: Column) -> str:
    order = "" if cell.order is None else f' data-order="{cell.order!r}"'
    return f'<td class="{"number" if column.numeric else ""}"{order}>{cell.html}</td>'


_STYLE = """
.daceopt-report { font: 14px/1.45 system-ui, sans-serif; color: #1c2430; background: #fff }
.daceopt-report { padding: 20px 24px; max-width: 1280px }
.daceopt-report h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere }
.daceopt-report h2 { font-size: 15px; margin: 26px 0 8px }
.daceopt-report p { margin: 4px 0; overflow-wrap: anywhere }
.daceopt-report .quiet { color: #667085; font-size: 12px; font-weight: normal; overflow-wrap: anywhere }
.daceopt-report .warning { background: #fef3f2; border-left: 3px solid #d92d20; padding: 8px 12px; margin: 12px 0 }
.daceopt-report .note { background: #fffaeb; border-left: 3px solid #dc9a06; padding: 8px 12px; margin: 8px 0 }
.daceopt-report .tiles { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 16px }
.daceopt-report .tile { border: 1px solid #e4e7ec; border-radius: 8px; padding: 8px 14px; min-width: 120px }
.daceopt-report .tile b { display: block; font-size: 20px; font-variant-numeric: tabular-nums }
.daceopt-report .tile span { color: #667085; font-size: 12px }
.daceopt-report .scroll { overflow-x: auto }
.daceopt-report table { border-collapse: collapse; width: 100%; margin: 0 }
.daceopt-report th { font-size: 12px; color: #475467; font-weight: 600; cursor: pointer; white-space: nowrap }
.daceopt-report th:hover { color: #175cd3 }
.daceopt-report th[aria-sort=ascending]::after { content: " \\25B2" }
.daceopt-report th[aria-sort=descending]::after { content: " \\25BC" }
.daceopt-report th, .daceopt-report td { padding: 5px 12px 5px 0; border-bottom: 1px solid #eaecf0 }
.daceopt-report th, .daceopt-report td { vertical-align: top; text-align: left }
.daceopt-report td { overflow-wrap: anywhere; min-width: 44px }
.daceopt-report td:first-child { min-width: 150px }
.daceopt-report .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.daceopt-report .weight { height: 3px; background: #98a2b3; border-radius: 2px; margin-left: auto }
.daceopt-report .bar { display: inline-block; width: 120px; height: 10px }
.daceopt-report .bar { background: #eaecf0; border-radius: 5px; overflow: hidden }
.daceopt-report .bar div { height: 100%; background: #2e90fa }
.daceopt-report .share { margin-left: 8px; font-variant-numeric: tabular-nums }
.daceopt-report summary { cursor: pointer; color: #175cd3; font-size: 12px }
.daceopt-report pre { font: 12px/1.4 ui-monospace, monospace; background: #f9fafb; padding: 8px; max-width: 900px }
.daceopt-report pre { overflow: auto; max-height: 480px; margin: 4px 0; white-space: pre; color: #1c2430 }
.daceopt-report .how { border-radius: 8px; padding: 0 8px; font-size: 12px; background: #ecfdf3; color: #067647 }
.daceopt-report .how.lowered { background: #eff8ff; color: #175cd3 }
.daceopt-report .how.fallback { background: #fef3f2; color: #b42318 }
"""

# A click on a heading sorts by that column: numbers fall first, text rises first, the next click turns it round.
_SORT = """
for (const head of document.currentScript.parentElement.querySelectorAll("th")) head.onclick = () => {
  const column = head.cellIndex, body = head.closest("table").tBodies[0], rows = [...body.rows];
  const key = row => row.cells[column].dataset.order;
  const numeric = rows.some(row => key(row) !== undefined);
  const rising = head.ariaSort ? head.ariaSort === "descending" : !numeric;
  const text = row => row.cells[column].innerText;
  const compare = (a, b) => numeric ? key(a) - key(b) : text(a).localeCompare(text(b));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  body.append(...rows.sort((a, b) => rising ? compare(a, b) : compare(b, a)));
};
"""
