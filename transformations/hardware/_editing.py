"""What the steps share that edit loops as their options say: which kernels, what is checked, and what a refusal is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits.kernel_edits import of, put
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.loop_form import Pair
from daceopt.passes.transform import NearMiss, Site
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class KernelEdit(KernelStep):
    """A step that edits the loops of kernels as its options say: subclasses define ``edited``.

    ``kernel``: labels of the kernels, with wildcards. Loops are called as ``explain`` prints them. What is not legal is
    a near miss, with the dependence, the loop or the element that forbids it; nothing is changed then.
    """

    kernel: str = "*"

    def edited(self, graph: Graph, pair: Pair) -> Pair | str | None:
        """The kernel and its loops after the edit; None: there is nothing to do here; a text: why not.

        May raise IllegalSchedule or Unsupported.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define edited")

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not fnmatchcase(node.label, self.kernel):
            return
        try:
            before = of(graph, node)
            after = self.edited(graph, before)
            if isinstance(after, tuple) and after != before:
                check(graph, after[0], schedule.accumulated(after[1], after[0]))
                yield Site(graph, (node,), {"pair": after})
        except (IllegalSchedule, Unsupported) as error:
            after = str(error)
        if isinstance(after, str):
            yield NearMiss(node, after)

    def apply(self, site: Site) -> None:
        put(site.graph, site.nodes[0], site["pair"])


def named(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """An option that is a name or several."""
    return (names,) if isinstance(names, str) else tuple(names)
