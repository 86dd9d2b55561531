"""One step of training on one rank as a search sees it: computations in their order, and the gradients they produce.

Nothing here knows of graphs, kernels or solvers; ``program_training_graph.py`` makes one of a program.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from daceopt.errors import DaceoptError

Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""In what order computations become one kernel: a computation, or two kernels, of which the first runs first."""


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
    may share a buffer."""

    name: str
    bytes: int
    producer: int
    dtype: str = "float32"


@dataclass(frozen=True)
class TrainingGraph:
    """Computations in the order in which they run when nothing is fused. Raises DaceoptError unless each stands behind
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

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(producer, reader) of computations that may both join others."""
        found = self.computations
        return tuple((p, k) for k, c in enumerate(found) if c.fusible for p in c.before if found[p].fusible)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with everything that a strategy for this graph depends on but times."""
        plain = asdict(self)
        for computation in plain["computations"]:
            del computation["seconds"]
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
    found: list[int] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, int):
            found.append(node)
        else:
            waiting += reversed(node)
    return found


@dataclass(frozen=True)
class GroupModel:
    """What a search asks about groups. ``why_not(first, second, copied)``: what keeps them from being one kernel, or
    None; ``seconds(group)``: how long its kernel takes. Both are asked again and again, and keep what they know."""

    why_not: Callable[[KernelGroup, KernelGroup, bool], str | None]
    seconds: Callable[[KernelGroup], float]
