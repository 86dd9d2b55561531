"""One kernel as a program of its own, on random values: what it takes when nothing runs beside or before it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from daceopt import libs, progress
from daceopt.codegen.build import GeneratedProgram
from daceopt.codegen.shown import Shown, by_result
from daceopt.cost.standing_alone import alone
from daceopt.cost.work import resolve
from daceopt.explore.report.built_program import BuiltProgram
from daceopt.explore.report.tables import KernelRow
from daceopt.explore.report.units import amount, duration, percent, printable
from daceopt.explore.session.version_report import finish
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import types
from daceopt.runtime.invocation import torch_dtype

if TYPE_CHECKING:
    from daceopt.cost.machine import Machine

_AT_LEAST = 15
_RESOLUTION = 1e-9  # of the clock, in seconds


class MeasuringPlace(NamedTuple):
    """Where kernels run, and what they can reach there."""

    device: torch.device
    machine: Machine


@dataclass(frozen=True)
class KernelMeasurement:
    """A kernel with its measured median of ``runs`` as ``row.seconds``, beside what ``machine`` allows its bytes and
    operations; ``how``: where it ran."""

    row: KernelRow
    machine: Machine
    runs: int
    how: str

    @property
    def seconds(self) -> float:
        return max(self.row.seconds or 0.0, _RESOLUTION)

    @property
    def share(self) -> float:
        """How much of the machine's limit it reaches, 1 being all of it."""
        return self.row.limit / self.seconds

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.row.flops / max(self.row.bytes, 1)

    def text(self) -> str:
        """The measurement, then schedule and C++."""
        return f"{self}\n{self.row.text()}"

    def __str__(self) -> str:
        row = self.row
        bound = "memory" if self.machine.seconds(row.bytes, 0) >= row.limit * 0.999 else "arithmetic"
        rates = f"{amount(row.bytes / self.seconds, 'B/s')}, {amount(row.flops / self.seconds, 'flop/s')}"
        return printable(
            f"{row.label} ({row.direction}): {duration(self.seconds)}, median of {self.runs} {self.how}; "
            f"{amount(row.bytes, 'B')}, {amount(row.flops, 'flop')}: {rates}; "
            f"{percent(self.share)} of the limit, {duration(row.limit)} by {bound}"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def measure_alone(
    graph: Graph, position: int, row: KernelRow, place: MeasuringPlace, sizes: Mapping[str, int], seconds: float
) -> KernelMeasurement:
    """Run node number ``position`` of ``graph`` by itself for about ``seconds``. Raises Unsupported where it is none
    without what is around it, BuildError and what a run raises."""
    own = alone(graph, [position])
    tensors = {k: _random(own, name, sizes).to(place.device) for k, name in enumerate(own.inputs)}
    times: list[float] = []
    whole, added = finish(Program.of(own))
    with BuiltProgram.temporary(whole) as program:
        program.times(tensors)  # what is loaded, allocated and created at a first call
        with progress.parts(100, "% of the runs") as counter:
            start = time.perf_counter()
            while len(times) < _AT_LEAST or time.perf_counter() < start + seconds:
                times.append(sum(program.times(tensors)[0].values()))
                over = (time.perf_counter() - start) / seconds if seconds else 1.0
                counter.reach(int(100 * min(1.0, over, len(times) / _AT_LEAST)))
        shown = list(dict.fromkeys(by_result(program.executables()[0]).values()))
    texts = ["\n".join(getattr(one, name) for one in shown) for name in ("source", "schedule")]
    measured = replace(row, seconds=statistics.median(times), source=texts[0], schedule=texts[1])
    return KernelMeasurement(measured, place.machine, len(times), _how(len(shown), added))


def code_alone(graph: Graph, position: int) -> list[Shown]:
    """Schedule and C++ of node number ``position`` of ``graph``, of which libraries may make several kernels. Raises
    Unsupported for an operator, and as :func:`measure_alone`."""
    own = alone(graph, [position])
    whole = Program.of(own)
    built = GeneratedProgram(own, whole.roles(own), libs.implement, 0)
    return [Shown(built.sources.of(k), built.sources.schedules[k]) for k in range(len(built.manifest.kernels))]


def _how(kernels: int, added: Sequence[str]) -> str:
    """Nothing else runs on the host or the device meanwhile, so what fits stays where the last run left it."""
    finish = f", finished by {', '.join(added)}" if added else ""
    several = f" as {kernels} kernels" if kernels > 1 else ""
    return f"by itself{several}{finish}, its arrays in the caches where they fit"


def _random(graph: Graph, name: str, sizes: Mapping[str, int]) -> torch.Tensor:
    """Memory for the array, whatever its layout, of a shape that says its sizes."""
    shape = [resolve(n, sizes) for n in graph.shape(name)]
    dtype = types.to_numpy(graph.dtype(name))
    stored = torch_dtype(dtype.name)
    if stored.is_floating_point:
        return torch.randn(shape).to(stored)
    return torch.zeros(shape, dtype=stored)
