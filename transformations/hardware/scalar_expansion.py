"""Let a loop that walks memory in unit steps run inside of a reduction, with a local for each of its iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from daceopt.cost.limits import limits
from daceopt.ir.access.references import StatementInstance
from daceopt.ir.edits.loops import KernelLoops, Nest
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.types import DType
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Loop, Param
from daceopt.transformations.hardware._scheduling import KernelStep, chosen, reduced_params
from daceopt.transformations.hardware.vectorization import score

_LANES = 8  # fewer iterations fill no vector


@dataclass(frozen=True)
class ScalarExpansion(KernelStep):
    """Distribute the innermost shared loop over its nests where it is the better vector loop of a reduction.

    before:  for i < m: for j < n: { local s; for k < p: s += x[index[k], j];  y[i, j] = s }
    after:   for i < m: { local s[n]; for k < p: for j < n: s[j] += x[index[k], j];  for j < n: y[i, j] = s[j] }

    The locals of one iteration become arrays over the loop (scalar expansion: Allen and Kennedy, Optimizing Compilers
    for Modern Architectures, 5.3), of at most ``array`` elements together: None says the machine, whose first cache
    they fill (``cost/limits.py``). Kernels that have a schedule keep it.
    """

    changes_dataflow: ClassVar[bool] = True

    array: int | None = None

    def edit(self, form: KernelLoops) -> Kernel | str | None:
        kernel = form.kernel
        if form.is_scheduled or kernel.is_tiled or kernel.forwarded_arrays() or not form.locals or not form.shared:
            return None
        inner = form.shared[-1]
        if not any(_is_better(form, nest, inner) for nest in form.nests):
            return None
        if not isinstance(inner.extent, int):
            return f"a local for each of {inner.extent} iterations; expected a known number"
        if inner.extent * sum(map(_size, kernel.locals.values())) > chosen(self.array, limits().accumulators):
            return f"locals for {inner.extent} iterations fill more than the first cache"
        return expand(kernel, inner.param) if inner.extent >= _LANES else None


def expand(kernel: Kernel, param: Param) -> Kernel:
    """The kernel with locals of one dimension more, along the last of its outer loops, which all statements have."""
    locals_ = {n: (dtype, (*shape, kernel.extents[param])) for n, (dtype, shape) in kernel.locals.items()}

    def along(accesses: Mapping[str, Access]) -> dict[str, Access]:
        return {c: replace(a, index=(*a.index, param)) if a.array in locals_ else a for c, a in accesses.items()}

    stages = [Stage(s.params, along(s.reads), along(s.writes), s.assignments) for s in kernel.stages]
    outer = tuple(p for p in kernel.outer if p != param)
    new = replace(kernel, stages=stages, outer=outer, locals=locals_)
    return replace(new, schedule=schedule.default(new))


def _size(local: tuple[DType, Shape]) -> int:
    """Elements; a local of open extents counts as one that fills the cache."""
    _, shape = local
    return prod(n if isinstance(n, int) else limits().accumulators for n in shape)


def _is_better(form: KernelLoops, nest: Nest, inner: Loop) -> bool:
    """Does the nest reduce, and would its accesses be nearer together along ``inner`` than along its own loops?"""
    if not reduced_params(form, nest):
        return False
    bodies = form.bodies_of(nest)
    return _best([inner], bodies) > _best(nest.loops, bodies)


def _best(loops: Sequence[Loop], bodies: Sequence[StatementInstance]) -> float:
    return max(score(loop, bodies) for loop in loops)
