"""What stands for the compiler in the keys of programs, and records of the cache that are none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from daceopt.programs import compiled
from daceopt.store.cache import key


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    good = {"programs": [key("program")], "history": [], "exchanges": []}
    good |= {name: {} for name in ("fallbacks", "hosted", "notes", "seconds")}
    path = tmp_path / compiled.REPORT
    path.write_text(json.dumps(good))
    assert compiled._read(tmp_path) == good
    for wrong in ({"programs": []}, {"programs": ["../../elsewhere"]}, {"programs": 3}, {"notes": []}):
        path.write_text(json.dumps(good | wrong))
        with pytest.raises((ValueError, TypeError)):
            compiled._read(tmp_path)


def test_an_edit_counts_whatever_the_clock_says(tmp_path: Path) -> None:
    """Of one size and one time, as repeatable builds give all files."""
    path = tmp_path / "inner" / "rule.py"
    path.parent.mkdir()
    keys = set()
    for text in ("x = 1", "x = 2"):
        path.write_text(text)
        os.utime(path, (1, 1))
        keys.add(key(*compiled._sources(str(tmp_path))))
    path.rename(tmp_path / "rule.py")
    keys.add(key(*compiled._sources(str(tmp_path))))
    assert len(keys) == 3
