"""A session as plain text: where it is, how it came there, and what stands beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from daceopt.explore.units import amount, plural, printable

if TYPE_CHECKING:
    from daceopt.explore.session import Session
    from daceopt.explore.version import Version

_MISSES, _WIDEST = 3, 90


def to_text(session: Session) -> str:
    """A line per version from the captured graph to here."""
    return "\n".join(_lines(session))


def _lines(session: Session) -> Iterator[str]:
    line = session.at.line()
    yield printable(f"{session.title}: session {session.name}, {plural(len(session.path), 'step')}")
    yield from (f"  note  {printable(note)}" for note in session.notes)
    titles = [_short(v.title) for v in line]
    width = max(map(len, titles))
    for version, title in zip(line, titles):
        mark = ">" if version is session.at else " "
        yield printable(f"{mark} {version.number:3}  {title:<{width}}  {summary(version)}").rstrip()
    yield from (f"       almost: {printable(miss)}" for miss in misses(session))
    if session.undone:
        yield f"  redo: {', '.join(_short(v.title) for v in reversed(session.undone))}"
    if len(session.branches) > 1:
        yield f"  branches: {', '.join(session.branches)}"


def _short(title: str) -> str:
    return title if len(title) <= _WIDEST else title[: _WIDEST - 3] + "..."


def misses(session: Session) -> list[str]:
    """Where the last change almost applied, if it applied nowhere."""
    return [] if not session.at.steps or session.at.sites() else list(session.at.misses())[:_MISSES]


def summary(version: Version) -> str:
    """``3 sites, 18 nodes, 1.2 MB``."""
    did = f"{plural(version.sites(), 'site')}, " if version.steps else ""
    return f"{did}{plural(version.nodes, 'node')}, {amount(version.bytes, 'B')}"
