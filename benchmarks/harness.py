"""What a benchmark is, what it yields, and how results become a table and a JSON file."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

OURS = "daceopt"


@dataclass(frozen=True)
class Budget:
    """How long to measure: seconds per contender, and repetitions of what runs in processes of its own; ``rows``: of a
    case those of these names alone, all if there are none; ``peers``: beside whom, None for those of the case."""

    seconds: float = 5.0
    repeats: int = 3
    rows: frozenset[str] = frozenset()
    peers: tuple[str, ...] | None = None

    def wants(self, row: str) -> bool:
        return not self.rows or row in self.rows

    @classmethod
    def quick(cls) -> Budget:
        """A first impression in a few minutes."""
        return cls(seconds=1.0, repeats=1)


@dataclass(frozen=True)
class Result:
    """Medians of one measure by contender, in ``unit``; ``met``: whether the ``goal`` was reached (None: no goal, or
    the machine was too busy to tell). ``spread``: the quartiles' distance as a share of each median; ``limit``: what
    the machine cannot go below, in ``unit``."""

    case: str
    measure: str
    unit: str
    values: dict[str, float]
    goal: str = ""
    met: bool | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    limit: float | None = None

    def ratios(self) -> dict[str, float]:
        """Peer's time over ours, by peer: above 1 means that we are faster."""
        ours = self.values.get(OURS)
        return {who: value / ours for who, value in self.values.items() if ours and who != OURS}

    @property
    def best(self) -> float | None:
        """The best peer's value over ours; None without peers, or without ours."""
        return min(self.ratios().values(), default=None)


Case = Callable[[Budget], Iterator[Result]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a benchmark under its name, with dashes for underscores."""
    CASES[function.__name__.replace("_", "-")] = function
    return function


def at_least(values: dict[str, float], factor: float, *peers: str) -> tuple[str, bool]:
    """The goal "``factor`` times as fast as the best of ``peers``", and whether ``values`` reach it."""
    best = min(values[p] for p in peers)
    return f"{factor:g}x the speed of {' and '.join(peers)}", best >= factor * values[OURS]


def at_most(value: float, bound: float, text: str) -> tuple[str, bool]:
    """The goal that ``value`` does not exceed ``bound``, described by ``text``."""
    return text, value <= bound


def run(names: list[str], budget: Budget, show: Callable[[str], None] = print) -> list[Result]:
    """Run the named cases (all, when there are none), showing each result as it comes; ``case:row,row``: some rows."""
    results = []
    show(header())
    for name in names or CASES:
        case_name, _, rows = name.partition(":")
        chosen = replace(budget, rows=frozenset(filter(None, rows.split(","))))
        for result in CASES[case_name](chosen):
            results.append(result)
            show(row(result))
    return results


def save(results: list[Result], folder: Path) -> Path:
    """Write the results and the description of the machine as JSON; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    content = {"machine": machine(), "results": [{**asdict(r), "ratios": r.ratios()} for r in results]}
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    import torch

    import daceopt
    from daceopt.cost.machine import this_machine
    from daceopt.cost.rates import rates

    return {
        "machine": str(this_machine()),
        "threads": torch.get_num_threads(),
        "products": dict(rates().products),
        "load over 1, 5, 15 minutes": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "daceopt": daceopt.__version__,
    }


# -------------------------------------------------------------------- the table

_COLUMNS = f"{'case':<16}{'measure':<42}{'unit':<6}"


def header() -> str:
    """The first line of the table."""
    return f"{_COLUMNS}values, and in brackets how many times ours; goal"


def row(result: Result) -> str:
    """One line of the table."""
    ratios = result.ratios()
    values = [
        f"{who} {v:.4g}" + (f" ({ratios[who]:.2f}x)" if who in ratios else "") for who, v in result.values.items()
    ]
    verdict = {True: "met: ", False: "MISSED: ", None: ""}[result.met] + result.goal
    if result.limit is not None and OURS in result.values:
        values.append(f"limit {result.limit:.4g} ({result.limit / result.values[OURS]:.0%})")
    notes = ", ".join(f"{k} {v}" for k, v in result.notes.items())
    line = f"{result.case:<16}{result.measure:<42}{result.unit:<6}" + "  ".join(values)
    return line + "".join(f"; {part}" for part in (verdict, notes) if part)
