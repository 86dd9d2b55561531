"""Results as tables on the pages of ``docs/results``, each between two marks, and as a plot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, Result

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def record(results: Sequence[Result], machine: dict[str, Any], folder: Path = RESULTS) -> None:
    """Put a table for each case on the page of ``folder`` that has one of an earlier run, in its place; a new one at
    the end of ``index.md``.

    Rows of a case that this run did not measure go with the old table: a table is one run's.
    """
    for case, rows in groupby(sorted(results, key=lambda r: r.case), key=lambda r: r.case):
        pages = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
        page = next((path for path, text in pages.items() if _mark(case) in text), folder / "index.md")
        page.write_text(_replace(pages.get(page, ""), case, table(list(rows), machine)), encoding="utf-8")


def _mark(case: str) -> str:
    return f"<!-- {case}: written by `python -m daceopt bench --record` -->"


def _replace(text: str, case: str, content: str) -> str:
    first, last = _mark(case), f"<!-- end of {case} -->"
    block = f"{first}\n{content}\n{last}"
    if first in text:
        return re.sub(rf"{re.escape(first)}.*?{re.escape(last)}", lambda _: block, text, flags=re.DOTALL)
    return f"{text.rstrip()}\n\n{block}\n"


def table(results: Sequence[Result], machine: dict[str, Any]) -> str:
    """The rows of one case: medians, the best peer over ours, the share of the machine's limit, and notes."""
    who = list(dict.fromkeys(name for r in results for name in r.values))
    has_limit = any(r.limit is not None for r in results)
    heads = ["", *who, "best peer / ours", *(["limit / ours"] if has_limit else []), "noise", ""]
    lines = [heads, ["---"] * len(heads), *(_cells(r, who, has_limit) for r in results)]
    about = ", ".join(f"{k} {v}" for k, v in machine.items())
    return f"{about}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(result: Result, who: Iterable[str], has_limit: bool) -> list[str]:
    ours = result.values.get(OURS)
    share = [] if not has_limit else [f"{result.limit / ours:.2f}" if ours and result.limit is not None else ""]
    values = [f"{result.values[name]:.4g} {result.unit}" if name in result.values else "" for name in who]
    best, notes = result.best, "; ".join(f"{k}: {v}" for k, v in result.notes.items())
    noise = f"{max(result.spread.values()):.0%}" if result.spread else ""
    return [result.measure, *values, "" if best is None else f"{best:.2f}", *share, noise, notes.replace("|", "/")]


def plot(results: Sequence[Result], path: Path) -> str:
    """The best peer's time over ours by row, as a picture of the kind that the name of ``path`` says; gives what became
    of it in words."""
    try:
        import matplotlib
    except ImportError:
        return "no plot without matplotlib: pip install -e .[bench]"

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [(f"{r.case}: {r.measure}", r.best) for r in results if r.best is not None]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.28 * len(rows)), layout="constrained")
    axes.barh([name for name, _ in rows], [best for _, best in rows], color=[_colour(best) for _, best in rows])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("best peer's time / ours (right of the line: ours is faster)")
    figure.savefig(path)
    pyplot.close(figure)
    return f"written: {path}"


def _colour(ratio: float) -> str:
    return "tab:green" if ratio >= 1 else "tab:red"
