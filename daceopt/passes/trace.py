"""``DACEOPT_TRACE=dir``: writes the graphs, the code and the timing of every compilation there, for a bug report."""

from __future__ import annotations

import itertools
import json
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.passes.step import Step

_calls = itertools.count(1)


def folder() -> Path | None:
    """Where traces go, or None when nobody asked for them."""
    named = os.environ.get("DACEOPT_TRACE")
    return Path(named) if named else None


def write(name: str, files: Mapping[str, str]) -> None:
    """Write texts by their suffix, under the next number of this process; does nothing unless asked for."""
    target = folder()
    if target is None:
        return
    target.mkdir(parents=True, exist_ok=True)
    stem = f"{os.getpid()}-{next(_calls):04d}-{name}"
    for suffix, text in files.items():
        (target / f"{stem}.{suffix}").write_text(text, encoding="utf-8", errors="backslashreplace")


def write_start(graphs: Iterable[Graph]) -> None:
    """Write graphs as text, as they are before the first step."""
    if folder() is None:
        return
    from daceopt.ir.text.render import render

    for graph in graphs:
        write(f"00-{graph.name}", {"txt": render(graph)})


def write_step(number: int, step: Step, graph: Graph) -> None:
    """Write the graph after ``step`` as text and the record of the step as JSON."""
    if folder() is None:
        return
    from daceopt.ir.text.render import render

    name = f"{number:02d}-{_file_name(step.name)}"
    write(name, {"txt": render(graph), "json": json.dumps(_plain(step), indent=1)})


@contextmanager
def failures(number: int, step: str) -> Iterator[None]:
    """Write down what a step within raises; the graph before it is that of the step before."""
    try:
        yield
    except Exception:
        write(f"{number:02d}-{_file_name(step)}", {"error.txt": f"step {step}\n{traceback.format_exc()}"})
        raise


def _file_name(step: str) -> str:
    return step.split("{")[0]


def _plain(step: Step) -> dict[str, Any]:
    return {k: v if isinstance(v, (int, float, list, type(None))) else str(v) for k, v in vars(step).items()}
