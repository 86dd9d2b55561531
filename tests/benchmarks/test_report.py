"""Tables in a document, in place of those of an earlier run; the plot."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import OURS, Result
from benchmarks.report import plot, record, table

MACHINE = {"machine": "two cores", "threads": 2}


def _result(case: str, ours: float) -> Result:
    values = {"eager": 3.0, OURS: ours}
    return Result(case, "row", "ms", values, "1x", True, {"a": "b|c"}, {OURS: 0.07}, limit=1.0)


def test_a_table_replaces_its_own_and_leaves_the_rest(tmp_path: Path) -> None:
    page, index = tmp_path / "kernels.md", tmp_path / "index.md"
    page.write_text(
        "# Kernels\n\nwords\n<!-- one: written by `python -m daceopt bench --record` -->\n<!-- end of one -->\nmore\n"
    )
    record([_result("one", 2.0), _result("two", 2.0)], MACHINE, tmp_path)
    record([_result("one", 1.5)], MACHINE, tmp_path)
    text, other = page.read_text(), index.read_text()
    assert text.startswith("# Kernels\n\nwords\n") and text.endswith("\nmore\n")
    assert text.count("<!-- one:") == other.count("<!-- two:") == 1 and "<!-- two:" not in text
    assert "| row | 3 ms | 1.5 ms | 2.00 | 0.67 | 7% | a: b/c |" in text
    assert "| row | 3 ms | 2 ms | 1.50 | 0.50 | 7% | a: b/c |" in other


def test_a_row_without_ours_has_no_ratio() -> None:
    wrong = Result("one", "row", "ms", {}, "right results", False, {OURS: "WRONG: off"})
    assert table([wrong], MACHINE).endswith("| row |  |  | daceopt: WRONG: off |")


def test_a_plot_has_a_bar_for_each_ratio(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot is of the extra `bench`")
    plot([_result("one", 2.0), _result("two", 4.0)], tmp_path / "ratios.svg")
    assert "<svg" in (tmp_path / "ratios.svg").read_text()
