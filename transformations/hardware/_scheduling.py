"""What the steps that schedule kernels share: the usual form of a schedule, and the driver over all kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.access.references import StatementInstance, resolve_all
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Alloc, Do, Loop, Param, Tree
from daceopt.passes.transform import NearMiss, Site, Transformation

_COSTLY = (*scalar.TRANSCENDENTAL, scalar.uniform)
_COSTLY_WEIGHT = 8


@dataclass(frozen=True)
class Nest:
    """Loops directly inside one another around statements that run in turn."""

    loops: tuple[Loop, ...]
    body: Tree

    def statements(self) -> list[int]:
        return [do.statement for do in schedule.dos(self.body)]

    def tree(self) -> Tree:
        return schedule.nested(self.loops, self.body)


@dataclass(frozen=True)
class Form:
    """The usual form of a schedule: shared loops, the locals of one of their iterations, and nests in turn.

    A kernel of one statement has no shared loops, but one nest.
    """

    graph: Graph
    kernel: Kernel
    shared: tuple[Loop, ...]
    locals: tuple[Alloc, ...]
    nests: tuple[Nest, ...]

    @classmethod
    def of(cls, graph: Graph, kernel: Kernel) -> Form | None:
        """The form of the kernel's schedule; None where it has another one, which a user gave it, or which a kernel
        with serial loops or tiles of its own has, or one that reads what it writes."""
        if kernel.is_tiled or kernel.forwarded_arrays():
            return None
        shared, tree = schedule.chain(schedule.bare(schedule.schedule_of(kernel)))
        allocs = []
        while isinstance(tree, Alloc):
            allocs.append(tree)
            tree = tree.body
        if not allocs and not isinstance(tree, schedule.Sequence):
            nest = _nest(shared, tree)
            return cls(graph, kernel, (), (), (nest,)) if isinstance(tree, Do) else None
        parts = tree.children if isinstance(tree, schedule.Sequence) else (tree,)
        nests = tuple(_nest(*schedule.chain(part)) for part in _joined(parts))
        plain = all(isinstance(n, Do) for nest in nests for n in _parts(_packless(nest.body)))
        return cls(graph, kernel, tuple(shared), tuple(allocs), nests) if plain else None

    def tree(self) -> Tree:
        """The schedule of this form, with its accumulators."""
        body = schedule.sequence([nest.tree() for nest in self.nests])
        for alloc in reversed(self.locals):
            body = replace(alloc, body=body)
        return schedule.accumulated(schedule.nested(self.shared, body), self.kernel)

    @cached_property
    def bodies(self) -> dict[int, StatementInstance]:
        """Statement -> its accesses in the parameters of the loops."""
        return resolve_all(self.graph, self.kernel, self.tree())

    def bodies_of(self, nest: Nest) -> list[StatementInstance]:
        return [self.bodies[k] for k in nest.statements()]

    @property
    def single(self) -> Nest | None:
        """The nest of a kernel of one statement without locals."""
        return None if self.shared or self.locals or len(self.kernel.stages) > 1 else self.nests[0]

    def with_nests(self, nests: Iterable[Nest]) -> Form:
        return replace(self, nests=tuple(nests))

    def with_loops(self, loops: Iterable[Loop], mapping: dict[Any, Any] | None = None) -> Form:
        """A kernel of one statement with other loops; ``mapping``: what stands for the old ones' parameters."""
        (nest,) = self.nests
        return self.with_nests([Nest(tuple(loops), schedule.substituted(nest.body, mapping or {}))])

    def with_shared(self, shared: Iterable[Loop], mapping: dict[Any, Any]) -> Form:
        """The nests inside of other shared loops; ``mapping``: what stands for the old ones' parameters."""
        trees = (schedule.substituted(nest.tree(), mapping) for nest in self.nests)
        return replace(self, shared=tuple(shared), nests=tuple(_nest(*schedule.chain(tree)) for tree in trees))


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


def _parts(tree: Tree) -> tuple[Tree, ...]:
    return tree.children if isinstance(tree, schedule.Sequence) else (tree,)


def _joined(trees: Sequence[Tree]) -> list[Tree]:
    """Statements beside loops: those in turn are one part."""
    done: list[Tree] = []
    for tree in trees:
        if isinstance(tree, Do) and done and not isinstance(done[-1], Loop):
            done[-1] = schedule.sequence([done[-1], tree])
        else:
            done.append(tree)
    return done


@dataclass(frozen=True)
class KernelStep(Transformation):
    """A step that looks at each kernel by itself, once: subclasses define ``match_at``."""

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for entry in graph.kernels():
            yield from self.match_at(graph, entry)


@dataclass(frozen=True)
class Scheduling(KernelStep):
    """A step that decides one thing about the loops of each kernel: subclasses define ``decide``."""

    changes_dataflow: ClassVar[bool] = False

    def decide(self, form: Form) -> Form | str | None:
        """The kernel's loops after this step; None: as before; a text: why something that looked possible is not."""
        raise NotImplementedError(f"{type(self).__name__} does not define decide")

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        try:
            form = _form(graph, node)
            new = self.decide(form) if form is not None else "its schedule was given by hand"
        except Unsupported as error:
            new = str(error)
        if isinstance(new, str):
            yield NearMiss(node, new)
        elif new is not None:
            yield Site(graph, (node,), {"schedule": new.tree()})

    def apply(self, site: Site) -> None:
        site.nodes[0].tree = site["schedule"]


_forms: WeakKeyDictionary[KernelNode, tuple[Kernel, Form | None]] = WeakKeyDictionary()


def _form(graph: Graph, entry: KernelNode) -> Form | None:
    """The form of a kernel; most steps leave most kernels as they are, and meet the form that the step before read."""
    known = _forms.get(entry)
    if known is None or known[0] is not entry.kernel:
        known = _forms[entry] = entry.kernel, Form.of(graph, entry.kernel)
    return known[1]


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


def reduced_params(form: Form, nest: Nest) -> set[Param]:
    """Parameters of loops that some write of the nest reduces over."""
    writes = [r for body in form.bodies_of(nest) for r in body.writes.values() if r.wcr]
    return {loop.param for loop in nest.loops if any(loop.param not in r.params() for r in writes)}


# ---------------------------------------------------------------- locals of threads


def with_shared_locals(form: Form) -> Form:
    """Locals of which each thread of a block writes a part are shared by them; what all threads compute alike, sums
    across them included, each keeps for itself."""
    scopes = [
        replace(a, scope="shared") if a.scope == "thread" and _is_spread(form, a.array) else a for a in form.locals
    ]
    return replace(form, locals=tuple(scopes))


def _is_spread(form: Form, array: str) -> bool:
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
