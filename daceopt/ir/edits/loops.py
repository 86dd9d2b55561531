"""A kernel of a graph in its loops, and what edits may ask of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.access.references import StatementInstance, resolve_all
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc, Do, Loop, Tree


@dataclass(frozen=True)
class Nest:
    """Loops directly inside one another around statements that run in turn."""

    loops: tuple[Loop, ...]
    body: Tree

    def statements(self) -> list[int]:
        return [do.statement for do in schedule.dos(self.body)]

    def tree(self) -> Tree:
        return schedule.nest_loops(self.loops, self.body)


@dataclass(frozen=True)
class KernelLoops:
    """``kernel`` with a schedule without accumulators, which follow from the order of the loops.

    The usual form of a schedule are ``shared`` loops, around everything, ``locals`` of one of their iterations, and
    ``nests`` in turn; a kernel of one statement has no shared loops, but one nest. Others have none of the three
    (Unsupported): a schedule that a user gave, that of a kernel with serial loops or tiles of its own, and that of one
    which reads what it writes. ``is_scheduled``: no step has scheduled it where that is False, and these are the loops
    of the default schedule.
    """

    graph: Graph
    kernel: Kernel
    is_scheduled: bool = True

    @property
    def tree(self) -> Tree:
        tree: Tree = self.kernel.schedule
        return tree

    def on(self, tree: Tree) -> KernelLoops:
        """The same kernel in other loops."""
        return KernelLoops(self.graph, replace(self.kernel, schedule=tree))

    @cached_property
    def placed(self) -> Kernel:
        """The kernel as graphs hold it, with its accumulators."""
        return replace(self.kernel, schedule=schedule.add_accumulators(self.tree, self.kernel))

    @cached_property
    def bodies(self) -> dict[int, StatementInstance]:
        """Statement -> its accesses in the parameters of the loops."""
        return resolve_all(self.graph, self.kernel, self.tree)

    def bodies_of(self, nest: Nest) -> list[StatementInstance]:
        return [self.bodies[k] for k in nest.statements()]

    # ---------------------------------------------------------------- the usual form

    @property
    def shared(self) -> tuple[Loop, ...]:
        return self._form[0]

    @property
    def locals(self) -> tuple[Alloc, ...]:
        return self._form[1]

    @property
    def nests(self) -> tuple[Nest, ...]:
        return self._form[2]

    @property
    def single(self) -> Nest | None:
        """The nest of a kernel of one statement without locals."""
        return None if self.shared or self.locals or len(self.kernel.stages) > 1 else self.nests[0]

    @property
    def common(self) -> Nest | None:
        """The loops that all statements have in common, where there are no others, and no locals in them: one nest."""
        alone = len(self.nests) == 1 and not self.locals and not (self.shared and self.nests[0].loops)
        return Nest((*self.shared, *self.nests[0].loops), self.nests[0].body) if alone else None

    @cached_property
    def _form(self) -> tuple[tuple[Loop, ...], tuple[Alloc, ...], tuple[Nest, ...]]:
        form = None if self.kernel.is_tiled or self.kernel.forwarded_arrays() else _form_of(self.tree)
        if form is None:
            raise Unsupported("its schedule was given by hand")
        return form

    # ---------------------------------------------------------------- other loops of this form

    def with_nests(
        self, nests: Iterable[Nest], shared: Iterable[Loop] | None = None, locals_: Sequence[Alloc] | None = None
    ) -> Tree:
        """Other nests, and other shared loops and locals where these are not None."""
        body = schedule.sequence([nest.tree() for nest in nests])
        for alloc in reversed(self.locals if locals_ is None else locals_):
            body = replace(alloc, body=body)
        return schedule.nest_loops(self.shared if shared is None else shared, body)

    def with_locals(self, allocs: Sequence[Alloc]) -> Tree:
        return self.with_nests(self.nests, locals_=allocs)

    def with_loops(self, loops: Iterable[Loop], mapping: dict[sympy.Symbol, sympy.Expr] | None = None) -> Tree:
        """A kernel of one statement with other loops; ``mapping``: what stands for the old ones' parameters."""
        (nest,) = self.nests
        return schedule.nest_loops(loops, schedule.substitute(nest.body, mapping or {}))

    def with_shared(self, shared: Iterable[Loop], mapping: dict[sympy.Symbol, sympy.Expr]) -> Tree:
        """The nests inside of other shared loops; ``mapping``: what stands for the old ones' parameters."""
        trees = (schedule.substitute(nest.tree(), mapping) for nest in self.nests)
        return self.with_nests((_nest(*schedule.chain(tree)) for tree in trees), shared)


def loops_of(graph: Graph, node: KernelNode) -> KernelLoops:
    """The loops of a kernel, or those of the default schedule. Most steps leave most kernels as they are, and meet what
    the step before has asked."""
    if node.loops is None or node.loops.graph is not graph:
        kernel = replace(node.kernel, schedule=schedule.without_accumulators(schedule.schedule_of(node.kernel)))
        node.loops = KernelLoops(graph, kernel, is_scheduled=node.tree is not None)
    loops: KernelLoops = node.loops
    return loops


def _form_of(tree: Tree) -> tuple[tuple[Loop, ...], tuple[Alloc, ...], tuple[Nest, ...]] | None:
    shared, tree = schedule.chain(tree)
    allocs = []
    while isinstance(tree, Alloc):
        allocs.append(tree)
        tree = tree.body
    if not allocs and not isinstance(tree, schedule.Sequence):
        return ((), (), (_nest(shared, tree),)) if isinstance(tree, Do) else None
    nests = tuple(_nest(*schedule.chain(part)) for part in _join_statements(schedule.parts(tree)))
    is_plain = all(isinstance(n, Do) for nest in nests for n in schedule.parts(_packless(nest.body)))
    return (tuple(shared), tuple(allocs), nests) if is_plain else None


def _nest(loops: Sequence[Loop], body: Tree) -> Nest:
    """An unrolled loop right inside of the others is what one of their iterations does."""
    if loops and loops[-1].kind == "unroll":
        return Nest(tuple(loops[:-1]), replace(loops[-1], body=body))
    return Nest(tuple(loops), body)


def _packless(body: Tree) -> Tree:
    return body.body if isinstance(body, Loop) else body


def pack(nest: Nest) -> int:
    """Neighbours that one iteration of the nest's loops runs."""
    return nest.body.extent if isinstance(nest.body, Loop) and isinstance(nest.body.extent, int) else 1


def _join_statements(trees: Sequence[Tree]) -> list[Tree]:
    """Statements beside loops: those in turn are one part."""
    parts: list[Tree] = []
    for tree in trees:
        if isinstance(tree, Do) and parts and not isinstance(parts[-1], Loop):
            parts[-1] = schedule.sequence([parts[-1], tree])
        else:
            parts.append(tree)
    return parts
