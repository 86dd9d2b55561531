"""Where a session is and how it came there: what its text and its page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daceopt.explore.session.version import Version

_MISSES = 3


@dataclass(frozen=True)
class SessionState:
    """``title``: what the model is called. ``name``: that of the session. ``at``: the version where it is. ``undone``:
    versions that ``redo`` would go to, the next one last. ``branches``: names of the sessions that began at one graph.
    """

    title: str
    name: str
    notes: Sequence[str]
    at: Version
    undone: Sequence[Version]
    branches: Sequence[str]

    def misses(self) -> list[str]:
        """Where the last change almost applied, if it applied nowhere."""
        return [] if not self.at.steps or self.at.sites() else list(self.at.misses())[:_MISSES]
