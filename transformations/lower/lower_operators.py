"""Replace operators by what they consist of: kernels, views, library nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt import ops
from daceopt.ir.control.region import everything, tidy
from daceopt.ir.graph.graph import Graph
from daceopt.passes.transform import NearMiss, Outcome, Site, Transformation


@dataclass(frozen=True)
class LowerOperators(Transformation):
    """Expand every operator natively (progressive lowering: Rausch et al., DaCeML, section 4.1).

    before:  Softplus(x) -> y
    after:   for i: y[i] = softplus(x[i])

    ``keep_rules`` leaves the operators that have a gradient rule of their own for after differentiation.
    """

    level: ClassVar[str] = "lower"
    keep_rules: bool = False

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for node in graph.operators():
            if not self._keeps(node):
                yield Site(graph, (node,))

    def apply(self, site: Site) -> None:
        ops.lower(site.graph, site.nodes[0])

    def run(self, graph: Graph, limit: int | None = None) -> Outcome:
        """All of them in one sweep, consumers first (a lowering may look at how its shape operands are computed)."""
        if limit is not None:
            return super().run(graph, limit)
        names = [node.op_type for part in everything(graph) for node in part.operators() if not self._keeps(node)]
        ops.lower_all(graph, keep=self._keeps)
        graph.prune()
        tidy(graph)
        return Outcome(names, [])

    def _keeps(self, node: ops.Operator) -> bool:
        return self.keep_rules and ops.has_gradient(node)
