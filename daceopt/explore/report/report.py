"""The report of ``explain`` as people see it: as text, as HTML, in notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daceopt.explore.report.html import to_document, to_fragment
from daceopt.explore.report.tables import Tables
from daceopt.explore.report.text import to_text


@dataclass
class Report(Tables):
    """What is supported, what was fused, what moves and what it costs; the data is that of :class:`Tables`."""

    def text(self) -> str:
        """The report as plain text."""
        return to_text(self)

    def html(self) -> str:
        """The report as one HTML document that needs no other file."""
        return to_document(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return to_fragment(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.text())
