"""What the steps that edit kernels share: their driver over all kernels, and questions about loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import sympy

from daceopt.cost.limits import limits
from daceopt.ir.access.kernel_pattern import pattern
from daceopt.ir.edits.attempt import Edited, attempt, exchange
from daceopt.ir.edits.loops import KernelLoops, Nest, loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Loop, Param, Tree
from daceopt.passes.transform import NearMiss, Site, Transformation

_COSTLY = (*scalar.TRANSCENDENTAL, scalar.uniform)
_COSTLY_WEIGHT = 8
_MOST = 512
_AFTER: dict[Any, Tree | None] = {}  # loops that a step gave a kernel, with the numbers of locals for their names


@dataclass(frozen=True)
class KernelStep(Transformation):
    """A step that edits each kernel by itself: subclasses define ``edit``.

    ``kernel``: labels of the kernels, with wildcards. Loops are called as ``explain`` prints them.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True
    changes_dataflow: ClassVar[bool] = False

    kernel: str = field(default="*", kw_only=True)

    def edit(self, loops: KernelLoops) -> Edited:
        """Other loops for the kernel, or another kernel with its loops; None: there is nothing to do here; a text: why
        something that looked possible is not. What is not legal is a near miss (``attempt``)."""
        raise NotImplementedError(f"{type(self).__name__} does not define edit")

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for node in graph.kernels():
            yield from self.match_at(graph, node)

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not fnmatchcase(node.label, self.kernel):
            return
        after = self._after(loops_of(graph, node))
        if isinstance(after, str):
            yield NearMiss(node, after)
        elif after is not None:
            yield Site(graph, (node,), {"kernel": after})

    def _after(self, loops: KernelLoops) -> KernelLoops | str | None:
        """What ``attempt`` gives: once for all kernels with tiles that are alike but for names of arrays, as layers of
        a network are, because what their loops may do takes long to prove."""
        if not loops.kernel.is_tiled:
            return attempt(loops, self.edit)
        like = pattern(loops.graph, loops.kernel)
        step = type(self), str(self), limits()
        key = step, loops.kernel.label, like.form, like.starts, like.number(loops.tree), loops.is_scheduled
        if key not in _AFTER:
            after = attempt(loops, self.edit)
            if isinstance(after, str) or (after is not None and after.kernel.stages is not loops.kernel.stages):
                return after
            if len(_AFTER) >= _MOST:
                _AFTER.clear()
            _AFTER[key] = None if after is None else like.number(after.tree)
        tree = _AFTER[key]
        return None if tree is None else loops.on(like.name(tree))

    def apply(self, site: Site) -> None:
        exchange(site.graph, site.nodes[0], site["kernel"])


def named(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """An option that is a name or several."""
    return (names,) if isinstance(names, str) else tuple(names)


# ---------------------------------------------------------------- questions about loops


def chosen(option: int | None, of_machine: int) -> int:
    """A step's option, or what the machine's model says (``cost/limits.py``)."""
    return of_machine if option is None else option


def count(loops: Iterable[Loop]) -> Dim:
    """Iterations of all loops together."""
    return dim(prod(loop.extent for loop in loops))


def at_least(extent: Dim, bound: int) -> bool:
    """Symbolic extents count as large."""
    return not isinstance(extent, int) or extent >= bound


def reduced_params(form: KernelLoops, nest: Nest) -> set[Param]:
    """Parameters of loops that some write of the nest reduces over."""
    writes = [r for body in form.bodies_of(nest) for r in body.writes.values() if r.wcr]
    return {loop.param for loop in nest.loops if any(loop.param not in r.params() for r in writes)}


# ---------------------------------------------------------------- locals of threads


def with_shared_locals(form: KernelLoops) -> Tree:
    """Locals of which each thread of a block writes a part are shared by them; what all threads compute alike, sums
    across them included, each keeps for itself."""
    return form.with_locals(
        [replace(a, scope="shared") if a.scope == "thread" and _is_spread(form, a.array) else a for a in form.locals]
    )


def _is_spread(form: KernelLoops, array: str) -> bool:
    for nest in form.nests:
        threads = {loop.param for loop in nest.loops if loop.kind in schedule.HARDWARE}
        writes = (r for body in form.bodies_of(nest) for r in body.writes.values())
        own = [r for r in writes if r.buffer.local and r.buffer.array == array]
        if any(r.params() & threads or (threads and not r.wcr) for r in own):
            return True
    return False


@lru_cache(4096)
def cost(code: tuple[Assignment, ...]) -> int:
    """Weight of one iteration: 1 for each few operations, more for transcendental functions."""
    nodes = sum(1 for a in code for _ in sympy.preorder_traversal(a.expr))
    costly = sum(1 for a in code for _ in a.expr.atoms(*_COSTLY))
    return 1 + nodes // 8 + _COSTLY_WEIGHT * costly
