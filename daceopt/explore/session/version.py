"""A version of a program in a session: what the steps up to it made, and what the last of them did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from daceopt.cost.work import resolve
from daceopt.passes.runner import bytes_moved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from daceopt.ir.control.program import Program
    from daceopt.passes.step import Step
    from daceopt.passes.transform import Transformation


@dataclass(frozen=True, eq=False)
class Version:
    """``number``: of its session, in the order in which they were made. ``title``: what led to it from ``parent``, as
    ``steps``; ``records``: what these did. Nothing edits ``program`` any more."""

    number: int
    program: Program
    title: str = "captured"
    steps: Sequence[Transformation] = ()
    records: Sequence[Step] = ()
    parent: Version | None = None
    notes: Sequence[str] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    def line(self) -> list[Version]:
        """From the captured program to this version."""
        versions = [self]
        while versions[-1].parent is not None:
            versions.append(versions[-1].parent)
        return versions[::-1]

    def path(self) -> tuple[Transformation, ...]:
        """The steps that lead here from the captured program."""
        return tuple(step for version in self.line() for step in version.steps)

    def history(self) -> list[Step]:
        """The records of these steps."""
        return [record for version in self.line() for record in version.records]

    @cached_property
    def nodes(self) -> int:
        """Operators, kernels and calls in all directions."""
        return sum(len(graph.nodes()) for graph in self.program.directions())

    @cached_property
    def bytes(self) -> int:
        """What they read and write, for the sizes of the call."""
        return sum(resolve(bytes_moved(graph), self.sizes) for graph in self.program.directions())

    def sites(self) -> int:
        """At how many places the last steps applied."""
        return sum(len(record.sites) for record in self.records)

    def misses(self) -> Iterator[str]:
        """Where they almost did, and why not."""
        for record in self.records:
            yield from record.near_misses
