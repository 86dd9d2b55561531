"""One step of training on one rank as a search sees it: computations in their order, and the gradients they produce.

Nothing here knows of graphs, kernels or solvers; ``program_operators.py`` makes one of a program.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from daceopt.errors import DaceoptError

Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""In what order computations become one kernel: a computation, or two kernels, of which the first runs first."""


NamedGroup: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, int], ...]]
"""The names of the computations of a group, of those of them that are copies, and the merges that make one kernel of
them: each of what holds two of them by then, given by their places."""


@dataclass(frozen=True)
class StepOperator:
    """An operator of the step: ``seconds`` that it takes alone, ``before``: positions of those whose results it reads.

    ``fusible``: may it join others? ``name`` is the same in all processes that make the graph.
    """

    name: str
    seconds: float
    before: tuple[int, ...] = ()
    fusible: bool = True


@dataclass(frozen=True)
class GradientTensor:
    """What all ranks exchange: ``bytes`` that the computation at position ``producer`` writes. Tensors of one ``dtype``
    may share a buffer. ``behind``: computations that need its average."""

    name: str
    bytes: int
    producer: int
    dtype: str = "float32"
    behind: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainingGraph:
    """Computations in the order in which they run when nothing is fused. Raises DaceoptError unless each is behind
    what it reads."""

    computations: tuple[StepOperator, ...]
    gradients: tuple[GradientTensor, ...]

    def __post_init__(self) -> None:
        for k, computation in enumerate(self.computations):
            if any(not 0 <= p < k for p in computation.before):
                raise DaceoptError(f"{computation.name} reads what does not run before it: {computation.before}")
            if not computation.seconds >= 0:
                raise DaceoptError(f"{computation.name} takes {computation.seconds} seconds")
        for gradient in self.gradients:
            if not 0 <= gradient.producer < len(self.computations) or gradient.bytes < 0:
                raise DaceoptError(f"gradient {gradient.name}: no computation produces it")
            if any(not gradient.producer < k < len(self.computations) for k in gradient.behind):
                raise DaceoptError(f"gradient {gradient.name}: what needs its average stands before it")

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(producer, reader) of computations that may both join others."""
        nodes = self.computations
        return tuple((p, k) for k, c in enumerate(nodes) if c.fusible for p in c.before if nodes[p].fusible)

    @cached_property
    def producers(self) -> tuple[int, ...]:
        """The position of what writes each gradient."""
        return tuple(g.producer for g in self.gradients)

    def name(self, group: KernelGroup) -> NamedGroup:
        """``group`` as what enacts it knows it."""
        order = leaves(group.tree)
        place = {k: n for n, k in enumerate(order)}
        copied = tuple(self.computations[k].name for k in sorted(group.members - group.exported))
        merges = tuple((place[leaves(first)[0]], place[leaves(second)[0]]) for first, second in joints(group.tree))
        return tuple(self.computations[k].name for k in order), copied, merges

    @cached_property
    def fingerprint(self) -> str:
        """Changes with everything that a strategy for this graph depends on but times."""
        plain = asdict(self)
        for computation in plain["computations"]:
            del computation["seconds"]
        for gradient in plain["gradients"]:
            del gradient["behind"]  # the edges of the computations say it
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


class KernelGroup(NamedTuple):
    """Computations that are one kernel. ``exported``: those whose results others read from here; the other ``members``
    are copies, computed again for this kernel alone."""

    tree: Tree
    members: frozenset[int]
    exported: frozenset[int]

    @classmethod
    def single(cls, position: int) -> KernelGroup:
        """A computation by itself."""
        return cls(position, frozenset((position,)), frozenset((position,)))

    def with_first(self, first: KernelGroup, copied: bool) -> KernelGroup:
        """What ``first`` and then this one do; ``copied``: the results of the first are for this one alone."""
        exported = self.exported if copied else self.exported | first.exported
        return KernelGroup((first.tree, self.tree), first.members | self.members, exported)


def leaves(tree: Tree) -> list[int]:
    """The computations of a tree, in their order."""
    positions: list[int] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, int):
            positions.append(node)
        else:
            waiting += reversed(node)
    return positions


def joints(tree: Tree) -> list[tuple[Tree, Tree]]:
    """The merges that make a kernel, each of two kernels, in an order in which both are there."""
    pairs: list[tuple[Tree, Tree]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, int):
            pairs.append(node)
            waiting += node
    return pairs[::-1]


def _none(groups: Sequence[KernelGroup]) -> Collection[Tree]:
    return ()


@dataclass(frozen=True)
class GroupModel:
    """What a search asks about groups. ``why_not(first, second, copied)``: what keeps them from being one kernel, or
    None; ``seconds(group)``: how long its kernel takes. Both are asked again and again, and keep what they know.

    ``refusals(groups)``: the merges, as the trees that they make, that cannot be when all these groups are enacted
    together. It is asked of results only, and takes long.
    """

    why_not: Callable[[KernelGroup, KernelGroup, bool], str | None]
    seconds: Callable[[KernelGroup], float]
    refusals: Callable[[Sequence[KernelGroup]], Collection[Tree]] = _none
