"""Charts of the tables in the documents: which ratios they show, and that there is one beside each page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.charts import PAGES, draw, read
from benchmarks.report import RESULTS

PAGE = """# Page

| what | more |
|---|---|
| 1 | 2 |

| network | eager | eager, channels last | OpenVINO | daceopt | limit | best peer / daceopt |
|---|---|---|---|---|---|---|
| a, batch 8 | 8 | 6.0 | 3 | 2 | 1 | 1.5 |
| b | 4 |  | wrong | 4 | 1 | **1.00** |
| geometric mean of 2 | | | | | | 1.2 |
"""


def test_a_chart_shows_the_times_of_peers_over_ours() -> None:
    assert read(PAGE) == {"a, batch 8": {"eager": 3.0, "OpenVINO": 1.5}, "b": {"eager": 1.0}}


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="a table with a column 'daceopt'"):
        read("# Page\n")


def test_each_page_has_its_chart() -> None:
    for name in PAGES:
        rows, chart = (read((RESULTS / f"{name}.md").read_text("utf-8")), (RESULTS / f"{name}.svg").read_text("utf-8"))
        assert rows and all(network in chart for network in rows)


def test_a_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="charts are of the extra `bench`")
    draw(read(PAGE), tmp_path / "chart.svg")
    assert "a, batch 8" in (tmp_path / "chart.svg").read_text("utf-8")
