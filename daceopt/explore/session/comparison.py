"""Two versions side by side: what differs in their graphs and schedules, what they move, and what they take."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from daceopt.cost.measure import interleave
from daceopt.errors import Unsupported
from daceopt.explore.report.built_program import BuiltProgram, Role
from daceopt.explore.report.units import change, duration, printable
from daceopt.explore.session.version_report import finish, result_name, what_is_unfinished
from daceopt.ir.graph.kinds import Node
from daceopt.ir.schedule import schedule, schedule_text
from daceopt.ir.text.render import render
from daceopt.passes.rounding import relative_error

if TYPE_CHECKING:
    from daceopt.explore.session.subject import Subject
    from daceopt.explore.session.version import Version
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph

Results = Mapping[Role, np.ndarray]
_CANCELLED = 1e-4  # of the largest element of all results of a kind: what is smaller may be rounding alone
_SHORT = 1e-4  # seconds


@dataclass(frozen=True)
class Comparison:
    """``names`` of the two versions, the first being what the other is compared with. ``graph`` and ``schedules``:
    unified diffs, lines of text; ``bytes``, ``kernels``: of the first, then of the other. ``seconds``: medians of
    interleaved runs in all directions, None where nothing was measured; ``difference``: the largest one of a result,
    relative to its largest element, and which result that is. ``notes``: what had to be added to run them."""

    names: tuple[str, str]
    graph: tuple[str, ...]
    schedules: tuple[str, ...]
    bytes: tuple[int, int]
    kernels: tuple[int, int]
    labels: tuple[Mapping[str, int], Mapping[str, int]]
    seconds: tuple[float, float] | None = None
    difference: tuple[float, str] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def speedup(self) -> float | None:
        """How many times faster the other one is."""
        return None if self.seconds is None else self.seconds[0] / self.seconds[1]

    def text(self) -> str:
        """All of it, with the diffs."""
        return "\n".join([*self._summary(), *_section("graph", self.graph), *_section("schedules", self.schedules)])

    def _summary(self) -> Iterator[str]:
        yield printable(f"{self.names[0]} -> {self.names[1]}")
        yield f"  kernels     {change(*self.kernels)}"
        yield f"  moves       {change(*self.bytes, 'B')}"
        old, new = self.labels[0], self.labels[1]
        for sign, counts, other in (("-", old, new), ("+", new, old)):
            for label in counts:
                if (count := counts[label] - other.get(label, 0)) > 0:
                    yield printable(f"  {sign} {label}" + (f" x {count}" if count > 1 else ""))
        if self.seconds is not None and self.difference is not None:
            times = " -> ".join(map(duration, self.seconds))
            yield f"  takes       {times}: {self.speedup:.2f} times as fast"
            apart, result = self.difference
            yield printable(f"  results     differ by {apart:.1e} of the largest element at most: {result}")
        yield from (f"  note        {printable(note)}" for note in self.notes)

    def __str__(self) -> str:
        changed = [f"{len(lines)} lines of {what}" for what, lines in _diffs(self) if lines]
        more = f"  differ in   {', '.join(changed)}: see .text()" if changed else "  graphs and schedules are the same"
        return "\n".join([*self._summary(), more])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        parts = [f"<pre>{escape(chr(10).join(self._summary()))}</pre>"]
        for what, lines in _diffs(self):
            body = escape("\n".join(lines))
            parts += (
                [f"<details><summary>{what}: {len(lines)} lines</summary><pre>{body}</pre></details>"] if lines else []
            )
        return "".join(parts)


def _diffs(comparison: Comparison) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("graph", comparison.graph), ("schedules", comparison.schedules)


def _section(name: str, lines: tuple[str, ...]) -> list[str]:
    return ["", f"{name}:", *map(printable, lines)] if lines else []


def compare(
    subject: Subject, names: tuple[str, str], versions: tuple[Version, Version], seconds: float | None
) -> Comparison:
    """The second of ``versions`` beside the first; both are built and run in turns for about ``seconds`` each, or not
    at all. Raises BuildError and what a run raises."""
    first, other = (v.program for v in versions)
    spent, difference, notes = (None, None, ()) if seconds is None else _time(subject, names, (first, other), seconds)
    return Comparison(
        names,
        _diff(names, _texts(first, render), _texts(other, render)),
        _diff(names, _texts(first, _schedules), _texts(other, _schedules)),
        (versions[0].bytes, versions[1].bytes),
        (versions[0].nodes, versions[1].nodes),
        (_labels(first), _labels(other)),
        spent,
        difference,
        notes,
    )


def _labels(program: Program) -> Counter[str]:
    return Counter(str(node.label) for graph in program.directions() for node in graph.nodes())


def _diff(names: tuple[str, str], first: list[str], other: list[str]) -> tuple[str, ...]:
    return tuple(difflib.unified_diff(first, other, *names, lineterm="", n=1))


def _texts(program: Program, text: Callable[[Graph], str]) -> list[str]:
    return [line for graph in program.directions() for line in text(graph).splitlines()]


def _schedules(graph: Graph) -> str:
    """How the loops of each kernel run, by what it writes."""
    return "\n".join(f"{', '.join(filter(None, graph.outputs_of(n)))}:\n{_schedule(graph, n)}" for n in graph.kernels())


def _schedule(graph: Graph, node: Node) -> str:
    try:
        return schedule_text.text(schedule.schedule_of(node.kernel))
    except Unsupported as error:
        return f"# {error}"


def _time(
    subject: Subject, names: tuple[str, str], programs: tuple[Program, Program], seconds: float
) -> tuple[tuple[float, float], tuple[float, str], tuple[str, ...]]:
    """Medians of both, the largest difference of a result, and what had to be added to run them."""
    (first, added), (other, more) = map(finish, programs)
    with BuiltProgram.temporary(first) as one, BuiltProgram.temporary(other) as two:
        difference = _difference(subject, one, two)
        tensors = [_own(subject), _own(subject)]
        spent = interleave({"one": one.runner(tensors[0]), "two": two.runner(tensors[1])}, seconds=seconds)
    versions = zip(names, (first, other), (added, more))
    notes = [
        f"{name} is {what_is_unfinished(p)} yet: finished by {', '.join(steps)}" for name, p, steps in versions if steps
    ]
    by_host = subject.device.type == "cpu"  # a device has a clock of its own
    short = by_host and max(spent.values()) < _SHORT
    notes += ["of calls as short as these a good part is the call itself"] if short else []
    return (spent["one"], spent["two"]), difference, tuple(notes)


def _own(subject: Subject) -> dict[int, torch.Tensor]:
    """Copies of the inputs: programs may write over them."""
    return {k: t.clone() for k, t in subject.tensors.items()}


def _difference(subject: Subject, one: BuiltProgram, two: BuiltProgram) -> tuple[float, str]:
    """The largest one of a result, and what the result is called; gradients of outputs are random: sums of ones cancel
    in normalizations."""
    outputs = {k: t for (kind, k), t in one.run(_own(subject)).items() if kind == "output" and t.is_floating_point()}
    draw = torch.Generator().manual_seed(0)
    gradients = {k: torch.randn(t.shape, generator=draw).to(t) for k, t in outputs.items()}
    results = [
        {role: t.double().cpu().numpy() for role, t in program.run(_own(subject), gradients).items()}
        for program in (one, two)
    ]
    apart = {role: _apart(role, *results) for role in results[0] if role in results[1]}
    worst = max(apart, key=apart.__getitem__)
    return apart[worst], result_name(subject, f"{worst[0]}:{worst[1]}")


def _apart(role: Role, first: Results, other: Results) -> float:
    """The relative difference of a result. One that is rounding alone beside the others of its kind, as gradients are
    of what a normalization takes away, counts by the scale of these."""
    error = relative_error(other[role], first[role])
    scale = max(_largest(values) for (kind, _), values in first.items() if kind == role[0])
    if np.isinf(error) or _largest(first[role]) >= _CANCELLED * scale:
        return error
    return _largest(other[role] - first[role]) / scale


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
