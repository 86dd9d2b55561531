"""Schedule kernels whose statements come in tiles: threads around them, micro-kernels and vectors inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import sympy

from daceopt.cost.limits import limits
from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.access.kernel_pattern import pattern, rename_locals
from daceopt.ir.access.references import StatementInstance, resolve_all
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.legality.microkernels import PRODUCT, TRANSPOSITION
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.scalar.dims import dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Call, Do, Loop, Tree
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.hardware._scheduling import at_least, chosen, cost


@dataclass(frozen=True)
class TileScheduling(Transformation):
    """Give a kernel with serial loops or tiles of its own the loops that fit: each decision where it is legal.

    before:  for qb: for kb:  { for q: for k: for d: s[q, k] += a[q, d] * b[d, k];  for q: for k: p[q, k] = f(s[q, k]) }
    after:   parallel for qb: for kb: { call product;  for q: vector for k: p[q, k] = f(s[q, k]) }

    Sums of products, and tiles that are turned round, become calls of micro-kernels, neighbouring loops over the same
    elements one loop, the innermost
    loops vector loops, and the shared loops parallel, as many as it takes for ``enough`` iterations, where the whole
    kernel has ``work`` weighted iterations; what is None says the machine (``cost/limits.py``).
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True
    changes_dataflow: ClassVar[bool] = False
    work: int | None = None
    enough: int | None = None

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, KernelNode) or node.tree is not None:
            return
        try:
            kernel = node.kernel
            if kernel.is_tiled:
                yield Site(graph, (node,), {"schedule": self._known(graph, kernel)})
        except Unsupported as error:
            yield NearMiss(node, str(error))

    def apply(self, site: Site) -> None:
        site.nodes[0].tree = site["schedule"]

    def _known(self, graph: Graph, kernel: Kernel) -> Tree:
        """The schedule of ``kernel``, from one that is alike but for names: layers of a network are."""
        like = pattern(graph, kernel)
        key = self, limits(), like.form
        if key not in _SCHEDULES:
            if len(_SCHEDULES) >= _MOST:
                _SCHEDULES.clear()
            _SCHEDULES[key] = like.number(self._scheduled(graph, kernel))
        return rename_locals(_SCHEDULES[key], {str(k): name for k, name in enumerate(like.names)})

    def _scheduled(self, graph: Graph, kernel: Kernel) -> Tree:
        edit = _Edits(graph, kernel)
        for k, stage in enumerate(kernel.stages):
            edit.call(k, stage)
        for p in kernel.extents:
            edit.attempt(edits.fuse_loops(edit.tree, p))
        edit.vectorize()
        edit.attempt(self._threaded(kernel, edit.tree))
        return schedule.accumulated(edit.tree, kernel)

    def _threaded(self, kernel: Kernel, tree: Tree) -> Tree:
        work = dim(sum(cost(s.assignments) * kernel.most((*kernel.outer, *_others(kernel, s))) for s in kernel.stages))
        least, enough = chosen(self.work, limits().worthwhile), chosen(self.enough, limits().enough)
        if not at_least(work, least):
            return tree
        when = None if isinstance(work, int) else sympy.Ge(work, least, evaluate=False)
        band, body = schedule.chain(tree)
        count = 1
        for k, loop in enumerate(band):
            if loop.param in kernel.outer and loop.kind == "serial" and count < enough:
                band[k] = replace(loop, kind="parallel", when=when)
                count *= loop.extent if isinstance(loop.extent, int) else 1
        return schedule.nested(band, body)


_MOST = 128
_SCHEDULES: dict[Any, Tree] = {}  # by pattern; with the numbers of locals for their names


def _others(kernel: Kernel, stage: Stage) -> list[Any]:
    return [p for p in stage.params if p not in kernel.outer]


class _Edits:
    """A schedule in the making: an edit that is not legal leaves it as it is."""

    def __init__(self, graph: Graph, kernel: Kernel):
        self._graph, self._kernel = graph, kernel
        self.tree = schedule.bare(schedule.default(kernel))
        self._check(self.tree)

    def _check(self, tree: Tree) -> None:
        check(self._graph, self._kernel, schedule.accumulated(tree, self._kernel))

    def attempt(self, tree: Tree) -> bool:
        """Take ``tree`` where it is legal."""
        if tree == self.tree:
            return False
        try:
            self._check(tree)
        except IllegalSchedule:
            return False
        self.tree = tree
        return True

    def call(self, statement: int, stage: Stage) -> None:
        """A micro-kernel for the innermost loops of a sum of products, or of a copy that turns a tile round."""
        is_sum = any(a.wcr == "sum" for a in stage.writes.values()) and len(stage.reads) == 2
        is_copy = len(stage.reads) == len(stage.writes) == len(stage.assignments) == 1
        microkernel, counts = (PRODUCT, (3, 2)) if is_sum else (TRANSPOSITION, (2,))
        params = [p for p in stage.params if p not in (*self._kernel.outer, *self._kernel.serial)]
        for inner in (params[-count:] for count in counts if is_sum or is_copy):
            if len(inner) in counts:
                try:
                    tree = edits.call(self.tree, statement, inner, microkernel)
                except IllegalSchedule:
                    continue
                if self.attempt(tree):
                    return

    def vectorize(self) -> None:
        """The innermost loops along which what they access lies side by side."""
        bodies = resolve_all(self._graph, self._kernel, self.tree)
        inner = [n for n, around in schedule.walk(self.tree) if isinstance(n, Loop) and _is_innermost(n, around)]
        even = [loop for loop in inner if loop.param not in self._kernel.serial and _is_even(loop, bodies)]
        if not self.attempt(_vectors(self.tree, even)):
            for loop in even:
                self.attempt(_vectors(self.tree, [loop]))


def _is_even(loop: Loop, bodies: Mapping[int, StatementInstance]) -> bool:
    references = [r for do in schedule.dos(loop) for r in bodies[do.statement].references()]
    return all(r.step(loop.param) in (None, 0, 1) for r in references)


def _vectors(tree: Tree, loops: Sequence[Loop]) -> Tree:
    return schedule.transformed(tree, lambda n: replace(n, kind="vector") if isinstance(n, Loop) and n in loops else n)


def _is_innermost(loop: Loop, around: tuple[Tree, ...]) -> bool:
    parts = loop.body.children if isinstance(loop.body, schedule.Sequence) else (loop.body,)
    return all(isinstance(part, Do) for part in parts) and not any(isinstance(n, Call) for n in around)
