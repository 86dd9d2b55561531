"""What a kernel is but for names: kernels of one pattern are scheduled and printed alike.

Layers of a network repeat; what is decided for one of them holds for the others. Names are those of arrays, and the
numbers by which random operators draw apart from one another (``philox.uniform(seed, number, element)``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule.schedule import Alloc, Tree, map_tree


@dataclass(frozen=True)
class KernelPattern:
    """``form``: loops, statements, locals and the layout of arrays, a hashable value that calls arrays and draws by
    numbers; ``names``: what these arrays are called here, ``starts``: the element of the buffer of each from which
    places in that count, and ``draws``: by which numbers is drawn here."""

    form: Any
    names: tuple[str, ...]
    starts: tuple[Dim, ...]
    draws: tuple[int, ...]

    def number(self, tree: Tree) -> Tree:
        """A schedule of the kernel with the numbers of its locals in the place of their names."""
        return rename_locals(tree, {name: str(k) for k, name in enumerate(self.names)})

    def name(self, tree: Tree) -> Tree:
        """The schedule that :meth:`number` made of one of a kernel like this, for this one."""
        return rename_locals(tree, {str(k): name for k, name in enumerate(self.names)})


def pattern(graph: Graph, kernel: Kernel) -> KernelPattern:
    """The pattern of a kernel of ``graph``. Its label and its schedule are no part of it."""
    alike, draws = with_open_draws(kernel)
    numbers = array_numbers(kernel)
    places = {name: graph.root(name) for name in numbers if name not in kernel.locals}
    starts = buffer_starts(places.values())
    for root in starts:
        numbers.setdefault(root, len(numbers))
    at = {n: (numbers[root], dim(offset - starts[root])) for n, (root, offset) in places.items()}
    arrays = tuple(kernel.locals.get(name) or (*_layout(graph, name), at.get(name)) for name in numbers)
    form = arrays, body_of(alike, numbers), tuple(graph.assumptions), graph.options.target
    return KernelPattern(form, tuple(numbers), tuple(starts.get(name, 0) for name in numbers), draws)


def array_numbers(kernel: Kernel) -> dict[str, int]:
    """The arrays that a kernel accesses, numbered in the order of its accesses."""
    accesses = (a for s in kernel.stages for a in (*s.reads.values(), *s.writes.values()))
    return {name: k for k, name in enumerate(dict.fromkeys(a.array for a in accesses))}


def buffer_starts(places: Iterable[tuple[str, Dim]]) -> dict[str, Dim]:
    """The buffers of ``places`` in their order, each with the offset of its first place, from which others count."""
    starts: dict[str, Dim] = {}
    for root, offset in places:
        starts.setdefault(root, offset)
    return starts


def rename_locals(tree: Tree, names: Mapping[str, str]) -> Tree:
    """A schedule whose locals are called what ``names`` says."""
    return map_tree(tree, lambda n: replace(n, array=names[n.array]) if isinstance(n, Alloc) else n)


def draw(k: int) -> sympy.Symbol:
    """What stands for the k-th number by which a kernel draws."""
    return sympy.Symbol(f"draw{k}", integer=True)


def with_open_draws(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel with symbols for the numbers by which it draws, and these numbers."""
    draws = dict.fromkeys(n for stage in kernel.stages for a in stage.assignments for n in _draws(a.expr))
    if not draws:
        return kernel, ()
    symbols = {number: draw(k) for k, number in enumerate(draws)}
    stages = [replace(s, assignments=tuple(_open(s.assignments, symbols))) for s in kernel.stages]
    return replace(kernel, stages=stages), tuple(map(int, draws))


def with_draws(kernel: Kernel, numbers: Mapping[int, int]) -> Kernel:
    """The kernel, which draws by other ``numbers``: old -> new; those without a new one stay."""
    other = {sympy.Integer(old): sympy.Integer(new) for old, new in numbers.items()}
    stages = [replace(s, assignments=tuple(_open(s.assignments, other))) for s in kernel.stages]
    return replace(kernel, stages=stages)


@lru_cache(1 << 12)
def _draws(expr: sympy.Expr) -> tuple[sympy.Integer, ...]:
    parts = (part for part in sympy.preorder_traversal(expr) if isinstance(part, scalar.uniform))
    return tuple(part.args[1] for part in parts if part.args[1].is_Integer)


def _open(assignments: Iterable[Assignment], symbols: Mapping[sympy.Symbol, sympy.Expr]) -> Iterable[Assignment]:
    for a in assignments:
        replacements = {
            u: u.func(u.args[0], symbols.get(u.args[1], u.args[1]), u.args[2]) for u in a.expr.atoms(scalar.uniform)
        }
        yield replace(a, expr=a.expr.xreplace(replacements)) if replacements else a


def _layout(graph: Graph, name: str) -> tuple[Any, ...]:
    return graph.dtype(name), graph.shape(name), graph.strides(name)


def body_of(kernel: Kernel, numbers: Mapping[str, int]) -> tuple[Any, ...]:
    """Its loops and statements, a hashable value, with ``numbers`` for the names of arrays."""
    stages = tuple(
        (s.params, _accesses(s.reads, numbers), _accesses(s.writes, numbers), s.assignments) for s in kernel.stages
    )
    return stages, tuple(kernel.extents.items()), kernel.outer, kernel.serial


def _accesses(part: Mapping[str, Access], numbers: Mapping[str, int]) -> tuple[Any, ...]:
    return tuple((c, numbers[a.array], a.index, a.wcr) for c, a in part.items())
