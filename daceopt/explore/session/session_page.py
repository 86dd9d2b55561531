"""A session as HTML: the walk so far, then the version at hand as a report. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from daceopt.explore.report.units import amount
from daceopt.explore.session.session_state import SessionState
from daceopt.explore.session.version import Version

_HEADS = ("version", "change", "sites", "nodes", "bytes")


def page(state: SessionState) -> str:
    """The versions from the captured graph to here, what was undone, and the branches beside."""
    return "".join(_parts(state))


def _parts(state: SessionState) -> Iterator[str]:
    yield f"<h2>Session {escape(state.name)}</h2>"
    heads = "".join(f'<th class="{"number" if k != 1 else ""}">{name}</th>' for k, name in enumerate(_HEADS))
    yield f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>'
    for version in state.at.line():
        yield _row(version, "shown" if version is state.at else "")
    for version in reversed(state.undone):
        yield _row(version, "undone")
    yield "</tbody></table></div>"
    for miss in state.misses():
        yield f'<p class="quiet">almost: {escape(miss)}</p>'
    if len(state.branches) > 1:
        yield f'<p class="quiet">Branches: {escape(", ".join(state.branches))}.</p>'


def _row(version: Version, look: str) -> str:
    undone = ' <span class="quiet">undone</span>' if look == "undone" else ""
    sites = str(version.sites()) if version.steps else ""
    numbers = (sites, str(version.nodes), amount(version.bytes, "B"))
    cells = "".join(f'<td class="number">{escape(n)}</td>' for n in numbers)
    first = f'<td class="number">{version.number}</td><td>{escape(version.title)}{undone}</td>'
    return f'<tr class="{look}">{first}{cells}</tr>'
