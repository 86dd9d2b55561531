"""``excluded.txt``: the tests that do not pass natively, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).parent / "excluded.txt"


@cache
def excluded() -> dict[str, str]:
    """Name -> reason."""
    return read(FILE)


def read(file: Path) -> dict[str, str]:
    """Name -> reason. ValueError for a line without a reason, and for a name that stands there twice."""
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = (part.strip() for part in line.partition(":"))
        if not reason or name in found:
            raise ValueError(f"{file.name}:{number}: expected 'name: reason', each name once; found {line!r}")
        found[name] = reason
    return found


def surprises(results: Mapping[str, str]) -> list[str]:
    """What a native run's results (name -> reason of a failure) have that ``excluded.txt`` does not say."""
    known = excluded()
    passed = [f"{n} passes, but is excluded: {known[n]}" for n in results if n in known and not results[n]]
    return passed + [f"{n} fails: {reason}" for n, reason in results.items() if reason and n not in known]
