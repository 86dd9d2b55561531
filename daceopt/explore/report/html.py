"""A report as HTML that needs no other file: a page of its own, or a fragment for notebooks. Every text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from typing import NamedTuple, TypeVar

from daceopt.explore.report import call_page, kernel_timeline, memory, roofline_plot
from daceopt.explore.report.drawing import drawings
from daceopt.explore.report.page import SHOW, SORT, STYLE
from daceopt.explore.report.tables import KernelRow, OperatorRow, StepRow, Tables
from daceopt.explore.report.text import idle_steps, limits, title
from daceopt.explore.report.units import amount, change, duration, percent, plural, sentence

Row = TypeVar("Row")


class Cell(NamedTuple):
    """What a table shows, and the number it sorts by (None: by its text)."""

    html: str
    order: float | None = None


class Column(NamedTuple):
    """A heading, and whether it holds numbers."""

    name: str
    numeric: bool = False


def to_document(report: Tables, above: str = "") -> str:
    """A complete HTML page; ``above``: HTML that is before the drawings."""
    head = f'<meta charset="utf-8"><title>{escape(report.title)}</title>'
    body = f'<body style="margin:0">{to_fragment(report, above)}</body>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n'


def to_fragment(report: Tables, above: str = "") -> str:
    """What a notebook shows below a cell."""
    drawn = (call_page.section, drawings, roofline_plot.section, kernel_timeline.section, memory.section)
    head, rest = (_head, _tiles), (*drawn, _kernel_tables, _step_table, _operator_table, _foot)
    first, last = ("".join(part for section in sections for part in section(report)) for sections in (head, rest))
    return f'<div class="daceopt-report"><style>{STYLE}</style>{first}{above}{last}<script>{SORT}{SHOW}</script></div>'


# -------------------------------------------------------------------- around the tables


def _head(report: Tables) -> Iterator[str]:
    yield f"<h1>{escape(report.title)}</h1>"
    facts = [report.mode, f"recipe {report.recipe or 'none'}", *report.inputs]
    yield f'<p class="quiet">{escape(" · ".join(facts))}</p>'
    if report.reason:
        yield f'<p class="warning"><b>Runs outside of compiled code.</b> {escape(report.reason)}</p>'
    for note in report.notes:
        yield f'<p class="note">{escape(note)}</p>'


def _tiles(report: Tables) -> Iterator[str]:
    if not report.kernels:
        return
    yield '<div class="tiles">'
    yield _tile("kernels", f"{report.nodes[1]}", f"{report.nodes[0]} before the recipe")
    yield _tile("bytes moved", amount(report.bytes_moved[1], "B"), f"{amount(report.bytes_moved[0], 'B')} before")
    for direction in ("forward", "backward"):
        measured = [k for k in report.of(direction) if k.seconds is not None]
        if measured:
            seconds, limit = sum(k.seconds or 0 for k in measured), sum(k.limit for k in measured)
            yield _tile(
                f"{direction}, in kernels", duration(seconds), f"{percent(limit / seconds)} of the machine's limit"
            )
    if report.operators:
        fallbacks = sum(o.count for o in report.fallbacks)
        yield _tile("operators", f"{sum(o.count for o in report.operators)}", plural(fallbacks, "fallback"))
    if report.seconds:
        origin = "from the cache" if report.cached else "compiled just now"
        yield _tile("compilation", duration(sum(report.seconds.values())), origin)
    yield "</div>"


def _tile(name: str, value: str, detail: str) -> str:
    return f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(detail)}</span></div>'


def _foot(report: Tables) -> Iterator[str]:
    if report.seconds:
        phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in report.seconds.items())
        yield f'<p class="quiet">Compilation: {escape(phases)}.</p>'
    if report.machine:
        what = "device" if report.machine.is_device else "machine"
        yield f'<p class="quiet">Limits of this {what}: {escape(limits(report.machine))}.</p>'


# -------------------------------------------------------------------- tables


def _kernel_tables(report: Tables) -> Iterator[str]:
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
        rows = [(k, kernel) for k, kernel in enumerate(report.kernels) if kernel.direction == direction]
        if rows:
            yield f"<h2>{escape(sentence(title(direction, report.of(direction))))}</h2>"
            longest = max((kernel.seconds or 0 for _, kernel in rows), default=0)
            places = [k for k, _ in rows]
            yield _table(columns, [kernel for _, kernel in rows], partial(_kernel, longest=longest), places)


def _kernel(kernel: KernelRow, longest: float) -> list[Cell]:
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
    """What is behind a row, which a click shows."""
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>" if text else ""


def _bar(kernel: KernelRow) -> str:
    if kernel.share is None:
        return f'<span class="quiet">at least {escape(duration(kernel.limit))}</span>'
    width = min(1.0, kernel.share) * 100
    hint = f"at least {duration(kernel.limit)} by bytes and flops"
    return (
        f'<div class="bar" title="{escape(hint)}"><div style="width:{width:.1f}%"></div></div>'
        f'<span class="share">{escape(percent(kernel.share))}</span>'
    )


def _step_table(report: Tables) -> Iterator[str]:
    busy = [s for s in report.steps if s.sites]
    if busy:
        yield "<h2>Recipe</h2>"
        columns = [Column("step"), Column("level"), Column("on"), Column("time", True), Column("sites", True)]
        yield _table([*columns, Column("nodes", True), Column("bytes", True)], busy, _step)
    idle = idle_steps(report)
    if idle:
        yield f'<p class="quiet">Found no site: {escape(", ".join(idle))}.</p>'


def _step(step: StepRow) -> list[Cell]:
    return [
        Cell(f"<b>{escape(step.name)}</b>"),
        Cell(escape(step.level)),
        Cell(escape(step.direction)),
        Cell(escape(duration(step.seconds)), step.seconds),
        Cell(str(step.sites), step.sites),
        Cell(escape(change(*step.nodes)), step.nodes[1] - step.nodes[0]),
        Cell(escape(change(*step.bytes, "B")), step.bytes[1] - step.bytes[0]),
    ]


def _operator_table(report: Tables) -> Iterator[str]:
    if report.operators:
        yield "<h2>Operators of the model</h2>"
        columns = [Column("operator"), Column("count", True), Column("how"), Column("reason")]
        shown = columns if any(o.reason for o in report.operators) else columns[:-1]
        yield _table(shown, report.operators, _operator)


def _operator(operator: OperatorRow) -> list[Cell]:
    return [
        Cell(f"<b>{escape(operator.name)}</b>"),
        Cell(str(operator.count), operator.count),
        Cell(f'<span class="how {escape(operator.how)}">{escape(operator.how)}</span>'),
        Cell(escape(operator.reason)),
    ]


def _table(
    columns: Sequence[Column], rows: Sequence[Row], cells: Callable[[Row], list[Cell]], places: Sequence[int] = ()
) -> str:
    """``places``: of the rows among the kernels of the report, for the drawing that shows them."""
    heads = "".join(f'<th class="{"number" if c.numeric else ""}" tabindex="0">{escape(c.name)}</th>' for c in columns)
    marks = [f' data-kernel="{k}"' for k in places] or [""] * len(rows)
    body = "".join(f"<tr{mark}>{''.join(map(_cell, cells(row), columns))}</tr>" for row, mark in zip(rows, marks))
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell, column: Column) -> str:
    order = "" if cell.order is None else f' data-order="{cell.order!r}"'
    return f'<td class="{"number" if column.numeric else ""}"{order}>{cell.html}</td>'
