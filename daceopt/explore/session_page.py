"""A session as HTML: the walk so far, then the version at hand as a report. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from daceopt.explore.session_text import misses
from daceopt.explore.units import amount

if TYPE_CHECKING:
    from daceopt.explore.session import Session
    from daceopt.explore.version import Version

_HEADS = ("version", "change", "sites", "nodes", "bytes")


def walk(session: Session) -> str:
    """The versions from the captured graph to here, what was undone, and the branches beside."""
    return "".join(_parts(session))


def _parts(session: Session) -> Iterator[str]:
    yield f"<h2>Session {escape(session.name)}</h2>"
    heads = "".join(f'<th class="{"number" if k != 1 else ""}">{name}</th>' for k, name in enumerate(_HEADS))
    yield f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>'
    for version in session.at.line():
        yield _row(version, "shown" if version is session.at else "")
    for version in reversed(session.undone):
        yield _row(version, "undone")
    yield "</tbody></table></div>"
    for miss in misses(session):
        yield f'<p class="quiet">almost: {escape(miss)}</p>'
    if len(session.branches) > 1:
        yield f'<p class="quiet">Branches: {escape(", ".join(session.branches))}.</p>'


def _row(version: Version, look: str) -> str:
    undone = ' <span class="quiet">undone</span>' if look == "undone" else ""
    sites = str(version.sites()) if version.steps else ""
    numbers = (sites, str(version.nodes), amount(version.bytes, "B"))
    cells = "".join(f'<td class="number">{escape(n)}</td>' for n in numbers)
    first = f'<td class="number">{version.number}</td><td>{escape(version.title)}{undone}</td>'
    return f'<tr class="{look}">{first}{cells}</tr>'
