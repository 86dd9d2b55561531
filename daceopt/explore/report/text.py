"""A report as plain text: fixed columns, nothing but what a terminal shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daceopt.cost.machine import Machine
from daceopt.explore.report import call_page, memory
from daceopt.explore.report.tables import KernelRow, StepRow, Tables
from daceopt.explore.report.units import amount, change, duration, percent, plural, printable

_WIDEST = 72


def to_text(report: Tables) -> str:
    """The whole report, one line per row; control characters of the model's names are shown, not obeyed."""
    lines = list(_head(report))
    if report.advice:
        lines += ["", "what to do first", *(f"  {printable(line)}" for line in call_page.lines(report))]
    for heading, rows, align in _tables(report):
        if rows[1:]:
            lines += ["", heading, *_table(rows, align)]
    return "\n".join([*lines, *_foot(report)])


def _head(report: Tables) -> Iterator[str]:
    yield printable(f"{report.title}: {report.mode}, recipe {report.recipe or 'none'}")
    if report.inputs:
        yield printable(f"  inputs    {', '.join(report.inputs)}")
    if report.reason:
        yield printable(f"  runs outside of compiled code: {report.reason}")
    if report.kernels:
        yield f"  kernels   {change(*report.nodes)}"
        yield f"  moves     {change(*report.bytes_moved, 'B')}"
    if report.seconds:
        phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in report.seconds.items())
        yield f"  compile   {'from the cache; when it was built: ' if report.cached else ''}{phases}"
    if report.machine:
        yield printable(f"  machine   {limits(report.machine)}")
    for note in report.notes:
        yield printable(f"  note      {note}")


def _foot(report: Tables) -> Iterator[str]:
    if report.kernels:
        label = printable(report.kernels[0].label)
        yield from ("", f"  schedule and C++: print(report.kernel({label!r}).text()), or explain --kernel {label}")
    idle = idle_steps(report)
    if idle:
        yield from ("", f"  found no site: {', '.join(idle)}")


def _tables(report: Tables) -> Iterator[tuple[str, list[tuple[str, ...]], str]]:
    """Title, rows with their headings, and the alignment of each column."""
    operators = [(o.name, str(o.count), o.how, o.reason) for o in report.operators]
    yield "operators", [("operator", "count", "how", "reason"), *operators], "<><<"
    names: tuple[str, ...]
    for call in report.calls:
        yield call_page.heading(call), [("part", "time", "share"), *call_page.rows(call)], "<>>"
    for direction in ("forward", "backward"):
        kernels = report.of(direction)
        names = ("", "writes", "from", "time", "limit", "of limit", "bytes", "flops", "by", "contents")
        yield title(direction, kernels), [names, *map(_kernel, kernels)], "<<<>>>>><<"
    yield memory.heading(report), [("", "node", "alive", "", "largest"), *memory.lines(report)], "<<><<"
    names = ("step", "level", "on", "time", "sites", "nodes", "bytes")
    yield "recipe", [names, *(_step(s) for s in report.steps if s.sites)], "<<<>><<"


def limits(machine: Machine) -> str:
    """Name and rates of a machine or a device in one line."""
    rates = [f"memory {amount(machine.memory_bandwidth, 'B/s')}", cache_rate(machine)]
    if not machine.is_device:
        cores = plural(machine.cores, "core")
        return f"{machine.name}, {cores}: {', '.join([*rates, amount(machine.flops, 'flop/s')])}"
    rates += [f"{amount(rate, 'flop/s')} in {what}" for what, rate in computing(machine)]
    return f"{machine.name}: {', '.join(rates)}"


def cache_rate(machine: Machine) -> str:
    """The bandwidth of what fits into its caches."""
    what = "L2 cache" if machine.is_device else "caches"
    return f"{what} {amount(machine.cache_bandwidth, 'B/s')}"


def computing(machine: Machine) -> list[tuple[str, float]]:
    """What elements or factors are, and how many operations per second on them."""
    names = {2: "bfloat16", 8: "float64"}
    return [(machine.factors, machine.flops), *((names[size], rate) for size, rate in machine.rates)]


def idle_steps(report: Tables) -> list[str]:
    """The steps that found nothing to do in either direction, each once."""
    busy = {s.name for s in report.steps if s.sites}
    return list(dict.fromkeys(s.name for s in report.steps if s.name not in busy))


def title(direction: str, kernels: Sequence[KernelRow]) -> str:
    """``forward: 3 kernels, 1.2 ms``."""
    measured = [k.seconds for k in kernels if k.seconds is not None]
    return f"{direction}: {plural(len(kernels), 'kernel')}" + (f", {duration(sum(measured))}" if measured else "")


def _kernel(kernel: KernelRow) -> tuple[str, ...]:
    by = f"{kernel.library} ({kernel.why})" if kernel.library else "generated"
    time = "-" if kernel.seconds is None else duration(kernel.seconds)
    times = time, duration(kernel.limit), percent(kernel.share)
    costs = amount(kernel.bytes, "B"), amount(kernel.flops)
    return kernel.label, kernel.writes, kernel.origin, *times, *costs, by, kernel.contents


def _step(step: StepRow) -> tuple[str, ...]:
    effect = change(*step.nodes), change(*step.bytes, "B")
    return step.name, step.level, step.direction, duration(step.seconds), str(step.sites), *effect


def _table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    cells = [[_short(printable(cell)) for cell in row] for row in rows]
    widths = [max(len(row[c]) for row in cells) for c in range(len(align))]
    return ["  " + "  ".join(f"{c:{a}{w}}" for c, a, w in zip(row, align, widths)).rstrip() for row in cells]


def _short(cell: str) -> str:
    return cell if len(cell) <= _WIDEST else cell[: _WIDEST - 3] + "..."
