"""``excluded.txt``: entries that are not as in eager PyTorch in every sample, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.onnx_suite.exclusions import read
from tests.opinfo.entries import Case
from tests.opinfo.states import RUNS, record

FILE = Path(__file__).parent / "excluded.txt"


@cache
def excluded() -> dict[str, str]:
    """Name of an entry, or ``entry/type`` -> reason."""
    return read(FILE)


def reason(name: str) -> str | None:
    """Why the case of this name is excluded; None if it is not."""
    case = Case.parse(name)
    known = excluded()
    return known.get(f"{case.entry}/{case.dtype}", known.get(case.entry))


def surprises(results: Mapping[str, Any]) -> list[str]:
    """Cases that fail and are not excluded."""
    found = {n: record(r) for n, r in results.items()}
    bad = {n: r for n, r in found.items() if r["state"] not in (*RUNS, "skipped") and reason(n) is None}
    return [f"{n} {r['state']}: {r['reason']}" for n, r in bad.items()]


def idle(results: Mapping[str, Any]) -> list[str]:
    """Exclusions that nothing needs any more, where ``results`` are those of whole entries."""
    failed: set[str] = set()
    seen: set[str] = set()
    for name, result in results.items():
        case = Case.parse(name)
        keys = {case.entry, f"{case.entry}/{case.dtype}"}
        seen |= keys
        failed |= keys if record(result)["state"] not in (*RUNS, "skipped") else set()
    return [f"{n} passes, but is excluded: {why}" for n, why in excluded().items() if n in seen - failed]
