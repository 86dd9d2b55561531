"""Fuse kernels that read neighbours, windows or steps of what others write, in overlapping tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.cost.limits import limits
from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.fusion.fusion_plan import FusionGroup, FusionPlan
from daceopt.ir.fusion.joining import join
from daceopt.ir.fusion.micro_graph import Link, links
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.nodes.library import Pool
from daceopt.ir.polyhedral import polyhedral
from daceopt.ir.polyhedral.polyhedral import Effort, Member
from daceopt.ir.schedule import schedule
from daceopt.ops.families.opened_windows import pool_kernel
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.partition._tile_choice import Estimate, TileChoice, Tiling

GAIN = 0.8  # of the time that both take as they are: estimates are rough, and a fusion must not be a loss


@dataclass(frozen=True)
class PolyhedralFusion(Transformation):
    """Compute what a stencil, a window or a strided read needs of its producer in each tile of its result.

    before:  for i, j: a[i, j] = f(x[i, j])    for i, j: y[i, j] = max(a[2*i, 2*j], ..., a[2*i + 1, 2*j + 1])
    after:   for i: { for k < 2, j: a_l[k, j] = f(x[2*i + k, j])    for j: y[i, j] = max(a_l[0, 2*j], ...) }

    Layer I of APOLLO (Zhao et al., MLSys 2022, section 4.1): isl aligns the loops of both kernels (shifted, scaled,
    interchanged), and tiles of them, overlapping where windows do, keep in between what passes. The tiles are those for
    which work and traffic are least (``_tile_choice.py``). Both kernels stay as they are where that is no gain, and
    where isl finds no schedule in bounds. Pools take part as kernels.

    ``max_operations`` and ``seconds`` bound isl. ``tile``: iterations along each loop whose iterations need something
    of each other, but the one along memory; None says the machine. ``max_stages`` bounds the statements of one kernel.
    ``gain``: the part of the estimated time that must remain at most.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    max_operations: int = 100_000
    seconds: float = 5.0
    tile: int | None = None
    max_stages: int = 16
    gain: float = GAIN

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        opened, misses = _open(graph)
        plan = FusionPlan(graph, self.max_stages, opened=opened)
        layer = _Layer(self, plan)
        for node in plan.nodes:
            layer.fuse_producers(node)
        for group in plan.fused_groups():
            yield Site(graph, tuple(group.members), {"kernel": layer.tilings[group].kernel})
        yield from (NearMiss(node, reason) for node, reason in (*misses, *plan.misses))

    def apply(self, site: Site) -> None:
        graph = site.graph
        graph.take_out(site.nodes)
        graph.add_kernel(site["kernel"].rename_locals_apart(graph))


def _open(graph: Graph) -> tuple[dict[Node, Kernel], list[tuple[Node, str]]]:
    """Library nodes as kernels, and why others are none, where a kernel writes what they read."""
    kernels: dict[Node, Kernel] = {}
    misses = []
    for node in graph.nodes():
        if not isinstance(node, Pool) or not _is_fed(graph, node):
            continue
        kernel = pool_kernel(graph, node)
        if isinstance(kernel, Kernel):
            kernels[node] = kernel
        else:
            misses.append((node, kernel))
    return kernels, misses


def _is_fed(graph: Graph, node: Pool) -> bool:
    return any(isinstance(p, KernelNode) for p in graph.producers(graph.reads(node)["X"]))


class _Layer:
    def __init__(self, options: PolyhedralFusion, plan: FusionPlan):
        self._options, self._plan, self._graph = options, plan, plan.graph
        self._estimate = Estimate(plan.graph, limits())
        self._effort = Effort(options.max_operations, options.seconds)
        self.tilings: dict[FusionGroup, Tiling] = {}

    def fuse_producers(self, node: Node) -> None:
        """Take in one producer after the other, as long as that is a gain."""
        self._plan.take_producers(node, self._attempt, self._is_neighbourhood)

    def _is_neighbourhood(self, first: FusionGroup, second: FusionGroup) -> bool:
        """Does the second read windows, neighbours or steps of what the first writes? What it reads element by element
        is for ``map-fusion``, which has had its turn."""
        arrays = set(self._plan.edge(first, second))
        own_links = [link for node in second.members for a, link in links(self._graph, node).items() if a in arrays]
        return any(_reaches(link) for link in own_links)

    def _attempt(self, first: FusionGroup, second: FusionGroup) -> str | None:
        plan = self._plan
        reason = plan.why_not(first, second)
        if reason is not None:
            return reason
        assert first.kernel is not None and second.kernel is not None
        try:
            kernel = join(self._graph, [first.kernel, second.kernel], lambda a: plan.is_needed(a, first, second))
        except Unsupported as error:
            return str(error)
        tiling = self._schedule(kernel)
        if isinstance(tiling, str):
            return tiling
        apart = self._time(first) + self._time(second)
        if tiling.time > self._options.gain * apart:
            return f"{tiling.kernel.label} would take {tiling.time / apart:.2f} of the time of both"
        self.tilings[plan.join(first, second, kernel)] = tiling
        return None

    def _schedule(self, kernel: Kernel) -> Tiling | str:
        try:
            order = polyhedral.schedule(self._graph, kernel, self._effort)
            return self._tile(kernel, polyhedral.outer_band(kernel, order))
        except (Unsupported, IllegalSchedule) as error:
            return str(error)

    def _tile(self, kernel: Kernel, band: list[Member]) -> Tiling | str:
        choice = TileChoice(self._estimate, kernel, band, self._options.tile)
        tiling = choice.best()
        if tiling is None:
            return choice.reason
        check(self._graph, tiling.kernel, schedule.default(tiling.kernel))
        return tiling

    def _time(self, group: FusionGroup) -> float:
        if group in self.tilings:
            return self.tilings[group].time
        assert group.kernel is not None
        alone = group.members[0] if len(group.members) == 1 else None
        return (self._estimate.library_time if isinstance(alone, Pool) else self._estimate.time)(group.kernel)


def _reaches(link: Link) -> bool:
    return "neighbourhood" in (link.view, link.way) and "opaque" not in (link.view, link.way)
