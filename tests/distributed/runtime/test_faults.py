"""Ranks that fail: all others end with an error that names the rank, in time, and nothing is left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.distributed import ranks
from tests.distributed.failing import BAD, SECONDS


def others(folder: Path, how: str, whole: bool, world: int, strategy: str = "auto") -> list[ranks.Ended]:
    said = {"HOW": how, "WHOLE": "01"[whole], "STRATEGY": strategy}
    ended = ranks.start("tests.distributed.failing", folder, world, seconds=150, ended=BAD, **said)
    return [own for rank, own in enumerate(ended) if rank != BAD]


@pytest.mark.parametrize(
    ("how", "whole", "world", "blamed"),
    [
        ("dies", False, 2, "rank 1 gave no answer"),
        pytest.param("dies", True, 3, "rank 1 gave no answer", marks=[pytest.mark.slow, pytest.mark.breadth]),
        pytest.param("stops", True, 2, "rank 1 gave no answer", marks=[pytest.mark.slow, pytest.mark.breadth]),
        pytest.param("is late", False, 3, "rank 1 had not begun exchange", marks=pytest.mark.slow),
    ],
)
def test_the_rank_at_fault_is_named(how: str, whole: bool, world: int, blamed: str, tmp_path: Path) -> None:
    _check(others(tmp_path, how, whole, world), blamed)


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize(
    ("how", "blamed"),
    [("dies", "rank 1 gave no answer"), ("is late", "rank 1 had not begun")],
)
def test_it_is_named_where_updates_are_in_shards(how: str, blamed: str, tmp_path: Path) -> None:
    _check(others(tmp_path, how, True, 2, "sharded"), blamed)


def _check(ended: list[ranks.Ended], blamed: str) -> None:
    for own in ended:
        assert own.code == 3, own.text
        assert "after 2 steps" in own.text and blamed in own.text, own.text
        seconds = float(re.search(r"and ([\d.]+) s", own.text)[1])  # type: ignore[index]
        assert seconds < SECONDS + 10, own.text
