"""Run the instances of sub-graphs in an order in which few bytes are alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.instances._order_program import solve
from daceopt.transformations.instances._orders import HEURISTICS
from daceopt.transformations.instances._units import Units, units_of

_CHOICES = (*HEURISTICS, "optimal", "best")


@dataclass(frozen=True)
class InstanceOrdering(Transformation):
    """Set ``graph.order``: one instance after another, each with all of its nodes.

    before:  a1 a2 a3 a4 b1 b2 c                 (instances of three sub-graphs)
    after:   a4 a3 b2 a2 a1 b1 c

    GraphTurbo (Zhao et al., OSDI 2023, section 3.3): ``by`` is ``bfs`` or ``dfs`` (algorithm 3), ``footprint`` (the
    heaviest first, section 3.6), ``best`` of these by the bytes that are alive where most are, or ``optimal``: the
    integer program that the paper leaves open, which starts from the best of these, takes up to ``seconds``, and never
    ends worse; the site says which bound it proved. Programs of more than ``variables`` variables are not tried.
    """

    level: ClassVar[str] = "hardware"
    changes_dataflow: ClassVar[bool] = False
    sites_are_independent: ClassVar[bool] = True
    by: str = "best"
    seconds: float = 10.0
    variables: int = 10_000

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        if self.by not in _CHOICES:
            raise DaceoptError(f"{self.name}: an order by {self.by!r}; expected one of {', '.join(_CHOICES)}")
        units = units_of(graph)
        if units.count < 2:
            return
        order, title = self._find(units)
        yield Site(graph, (), {"order": units.nodes(order), "title": title})

    def _find(self, units: Units) -> tuple[list[int], str]:
        orders = {name: heuristic(units) for name, heuristic in HEURISTICS.items()}
        peaks = {name: units.peak(order) for name, order in orders.items()}
        best = min(peaks, key=lambda name: (peaks[name], name != "dfs"))
        shown = ", ".join(f"{name} {peak}" for name, peak in peaks.items())
        if self.by == "optimal":
            solution = solve(units, orders[best], self.seconds, self.variables)
            proof = "proved optimal" if solution.is_optimal else f"at least {solution.bound} proved"
            return solution.order, f"optimal: {solution.peak} bytes alive at most ({shown}; {proof})"
        chosen = best if self.by == "best" else self.by
        return orders[chosen], f"{chosen}: {peaks[chosen]} bytes alive at most ({shown})"

    def apply(self, site: Site) -> None:
        site.graph.order = site["order"]
