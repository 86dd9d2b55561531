"""``DACEOPT_TRACE=dir``: writes the graph and the timing of every step there, for a bug report."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.passes.step import Step

_calls = itertools.count(1)


def folder() -> Path | None:
    """Where traces go, or None when nobody asked for them."""
    named = os.environ.get("DACEOPT_TRACE")
    return Path(named) if named else None


def write_step(number: int, step: Step, graph: Graph) -> None:
    """Write the graph after ``step`` as text and the record of the step as JSON; does nothing unless asked for."""
    target = folder()
    if target is None:
        return
    from daceopt.ir.render import render

    target.mkdir(parents=True, exist_ok=True)
    stem = f"{os.getpid()}-{next(_calls):04d}-{number:02d}-{step.name.split('{')[0]}"
    (target / f"{stem}.txt").write_text(render(graph), encoding="utf-8")
    (target / f"{stem}.json").write_text(json.dumps(_plain(step), indent=1), encoding="utf-8")


def _plain(step: Step) -> dict[str, Any]:
    return {k: v if isinstance(v, (int, float, list, type(None))) else str(v) for k, v in vars(step).items()}
