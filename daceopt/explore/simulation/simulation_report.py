"""What a simulation found, as data, as text and as HTML that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt.cost.simulator import Policy, Run
from daceopt.explore.report.units import amount, duration, percent, plural
from daceopt.explore.simulation import simulation_page
from daceopt.ir.interpreter.interpret import interpret

if TYPE_CHECKING:
    from daceopt.cost.simulator.tile_pipeline import Event
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.graph.placements import Placement
    from daceopt.passes.step import Step


@dataclass
class SimulationReport:
    """One execution on one cluster of a machine.

    ``run`` has all that was counted, ``graph`` what was run, ``history`` the steps of the recipe; ``scheduling``: the
    seconds that import and recipe took, plans that were simulated and not taken included; ``choice``: which plan it is,
    and the simulated times of all.
    """

    title: str
    run: Run
    policy: Policy
    scheduling: float
    graph: Graph = field(repr=False)
    values: Mapping[str, np.ndarray] = field(repr=False)
    history: tuple[Step, ...] = field(default=(), repr=False)
    choice: str = ""

    @cached_property
    def outputs(self) -> list[np.ndarray]:
        """The results, in call order: the schedule executed by the interpreter, node after node in its order, on real
        numbers. It runs when this is read first, and takes what NumPy takes."""
        arrays = interpret(self.graph, self.values)
        return [arrays[name] for name in self.graph.outputs]

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Where each array was that a layer writes, and how it was dealt to cores."""
        return self.run.placements

    @property
    def traffic(self) -> Mapping[str, int]:
        """Bytes read and written per level (``local``, ``shared``, ``memory``), and sent between cores
        (``exchange``)."""
        return self.run.traffic

    @property
    def cycles(self) -> int:
        return self.run.cycles

    @property
    def seconds(self) -> float:
        return self.run.seconds

    @property
    def timeline(self) -> tuple[Event, ...]:
        """What each unit did when; an event's ``task`` is a position in ``run.layers``."""
        return self.run.events

    def text(self) -> str:
        """A few lines."""
        run, placed = self.run, self.run.places_by_level()
        where = ", ".join(f"{count} in {level}" for level, count in placed.items())
        moved = ", ".join(f"{level} {amount(size, 'B')}" for level, size in self.traffic.items())
        busy = ", ".join(f"{unit} {percent(share)}" for unit, share in sorted(run.busy.items()))
        return "\n".join(
            (
                f"{self.title} on {run.machine.name}: {duration(run.seconds)}, {run.cycles} cycles",
                *([f"plan: {self.choice}"] if self.choice else []),
                f"{plural(run.kernels, 'kernel')}, {plural(len(run.layers), 'layer')}; results: {where}",
                f"moved: {moved}",
                f"busy: {busy}",
                f"spilled: {len(run.spilled)}; given arrays that stayed in the shared buffer: {len(run.promoted)}",
            )
        )

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the report as one HTML document, and return where it is."""
        target = Path(path)
        target.write_text(simulation_page.document(self.title, self.run, self.text()), encoding="utf-8")
        return target

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return simulation_page.fragment(self.title, self.run, self.text())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.text())
