"""A session as plain text: where it is, how it came there, and what is beside."""

from __future__ import annotations

from collections.abc import Iterator

from daceopt.explore.report.units import amount, plural, printable
from daceopt.explore.session.session_state import SessionState
from daceopt.explore.session.version import Version

_WIDEST = 90


def to_text(state: SessionState) -> str:
    """A line per version from the captured graph to here."""
    return "\n".join(_lines(state))


def _lines(state: SessionState) -> Iterator[str]:
    line = state.at.line()
    yield printable(f"{state.title}: session {state.name}, {plural(len(state.at.path()), 'step')}")
    yield from (f"  note  {printable(note)}" for note in state.notes)
    titles = [_short(v.title) for v in line]
    width = max(map(len, titles))
    for version, title in zip(line, titles):
        mark = ">" if version is state.at else " "
        yield printable(f"{mark} {version.number:3}  {title:<{width}}  {summary(version)}").rstrip()
    yield from (f"       almost: {printable(miss)}" for miss in state.misses())
    if state.undone:
        yield f"  redo: {', '.join(_short(v.title) for v in reversed(state.undone))}"
    if len(state.branches) > 1:
        yield f"  branches: {', '.join(state.branches)}"


def _short(title: str) -> str:
    return title if len(title) <= _WIDEST else title[: _WIDEST - 3] + "..."


def summary(version: Version) -> str:
    """``3 sites, 18 nodes, 1.2 MB``."""
    did = f"{plural(version.sites(), 'site')}, " if version.steps else ""
    return f"{did}{plural(version.nodes, 'node')}, {amount(version.bytes, 'B')}"
