"""``python -m benchmarks.charts``: tables of ``docs/results`` as charts: times of peers over ours for each network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import OURS
from benchmarks.report import RESULTS

PAGES = ("inference", "training")
_WIDEST = 6.0  # where bars are cut off
_COLOURS = {"eager": "#7a869a", "torch.compile": "#e2725b", "ONNX Runtime": "#3d8bfd", "OpenVINO": "#6f42c1"}
Rows = dict[str, dict[str, float]]


def main() -> None:
    """Write ``NAME.svg`` beside each page, from the first table of medians on it."""
    for name in PAGES:
        rows = read((RESULTS / f"{name}.md").read_text(encoding="utf-8"))
        draw(rows, RESULTS / f"{name}.svg")


def read(page: str) -> Rows:
    """Network -> peer -> the peer's time over ours, of the first table with a column of ours; eager PyTorch in its
    faster memory format. Raises ValueError where there is none."""
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    table = next((lines for lines in map(str.splitlines, tables) if OURS in _cells(lines[0])), None)
    if table is None:
        raise ValueError(f"expected a table with a column {OURS!r}")
    head, _, *body = table
    columns = _cells(head)
    return {cells[0]: ratios for cells in map(_cells, body) if (ratios := _ratios(dict(zip(columns, cells))))}


def _ratios(row: Mapping[str, str]) -> dict[str, float]:
    times = {name: float(text) for name, text in row.items() if re.fullmatch(r"[\d.]+", text)}
    ours = times.pop(OURS, None)
    eager = [times.pop(name) for name in list(times) if name.startswith("eager")]
    if ours is None or not eager:
        return {}
    return {name: time / ours for name, time in {"eager": min(eager), **times}.items() if name in _COLOURS}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def draw(rows: Rows, path: Path) -> None:
    """Bars of all peers for each network, and the line at which they are as fast as we are."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": path.stem, "svg.fonttype": "none"})
    from matplotlib import pyplot

    peers = [peer for peer in _COLOURS if any(peer in ratios for ratios in rows.values())]
    figure, axes = pyplot.subplots(figsize=(9, 0.8 + 0.14 * (len(peers) + 1) * len(rows)), layout="constrained")
    height = 0.8 / len(peers)
    for k, peer in enumerate(peers):
        places = [row + k * height - 0.4 for row, ratios in enumerate(rows.values()) if peer in ratios]
        axes.barh(places, [r[peer] for r in rows.values() if peer in r], height, align="edge", color=_COLOURS[peer])
    axes.legend(peers, loc="lower right")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlim(0, min(_WIDEST, 1.05 * max(ratio for ratios in rows.values() for ratio in ratios.values())))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("peer's time / daceopt's time (right of the line: daceopt is faster)")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
