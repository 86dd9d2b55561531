"""Apply a step at one chosen site, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daceopt.errors import DaceoptError
from daceopt.ir.control.program import DIRECTIONS
from daceopt.passes.recipe import as_step
from daceopt.passes.selection import Selector
from daceopt.passes.transform import NearMiss, Outcome, Site, Transformation, apply_at, look

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph


@dataclass(frozen=True)
class AtSite(Transformation):
    """Apply ``step`` at one of the sites that it finds; what a session records of a single choice.

    before:  a, b: two sites of the step
    after:   step(a), b

    ``site``, ``origin`` and ``number`` pick it as :class:`daceopt.passes.selection.Selector` says, in the graph of
    ``direction``. Its level is that of the step. Raises DaceoptError, with the sites that there are, where it is none.
    """

    needs_options = True

    step: str | Transformation = ""
    site: str = ""
    origin: str = ""
    number: int = 0
    direction: str = "forward"

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise DaceoptError(f"direction={self.direction!r} of at-site; expected one of {', '.join(DIRECTIONS)}")
        if self.step:
            for name in ("level", "changes_precision", "changes_dataflow"):
                object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def inner(self) -> Transformation:
        """The step itself. Raises DaceoptError where it is none, or edits programs rather than sites."""
        if not self.step:
            raise DaceoptError("at-site needs a step, as in at-site{step='map-fusion', site='add + tanh'}")
        transformation = as_step(self.step)
        if type(transformation).apply is Transformation.apply or isinstance(transformation, AtSite):
            raise DaceoptError(f"{transformation} has no single sites; apply it as a whole")
        return transformation

    def runs_on(self, direction: str) -> bool:
        return direction == self.direction

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        """The chosen site, which may lie in a body of control flow; why there is none."""
        try:
            yield self._choose(graph)
        except DaceoptError as error:
            yield NearMiss(self.site or "any site", str(error))

    def _choose(self, graph: Graph) -> Site:
        inner = self.inner
        sites = [site for site in look(inner, graph) if isinstance(site, Site)]
        return Selector(self.site, self.origin, self.number).pick(sites, inner)

    def apply(self, site: Site) -> None:
        self.inner.apply(site)

    def run(self, graph: Graph, limit: int | None = None) -> Outcome:
        """Apply it there, once."""
        if limit == 0:
            return Outcome([], [])
        return apply_at(self.inner, graph, self._choose(graph))
