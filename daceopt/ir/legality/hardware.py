"""How the loops of a schedule lie on an accelerator: its blocks, the warps of each and their lanes.

A block has a thread for each combination of its ``block`` loops that are inside one another, or a warp of ``LANES``
threads where the kernel has ``warp`` loops. What is outside of such a loop is done by every thread of it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from daceopt.errors import IllegalSchedule
from daceopt.ir.access.references import StatementInstance
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar import types
from daceopt.ir.schedule.schedule import Accumulate, Alloc, Loop, Partial, Tree, accumulator_type, children, loops, walk

LANES = 32


@dataclass(frozen=True)
class TargetLimits:
    """What every CUDA device offers: ``threads`` of a block, bytes that they may share without asking for more, and
    bytes of one array that each thread has for itself."""

    threads: int = 1024
    shared: int = 48 << 10
    own: int = 4 << 10


CUDA = TargetLimits()
LIMITS = {"cuda": CUDA}  # target -> what its schedules must keep


def limits_of(target: str) -> TargetLimits:
    """The limits of a target; of CUDA where it has none of its own."""
    return LIMITS.get(target, CUDA)


@dataclass(frozen=True)
class Place:
    """The value of a ``block`` loop: ``group // stride % below``, where ``group`` numbers the threads or warps of a
    block; ``below`` None: without the remainder."""

    stride: int
    below: int | None


class Threads:
    """The threads of a block for one schedule.

    ``lanes``: 32 where it has warp loops, else 1. ``groups``: warps (or threads) of a block. Raises IllegalSchedule for
    a ``block`` loop whose extent is no number.
    """

    def __init__(self, tree: Tree):
        self.is_used = any(loop.kind in ("grid", "block", "warp") for loop in loops(tree))
        self.lanes = LANES if any(loop.kind == "warp" for loop in loops(tree)) else 1
        self.groups = _width(tree)
        self._places: dict[int, Place] = {}
        self._number(tree, None)

    @property
    def count(self) -> int:
        """Threads of a block."""
        return self.groups * self.lanes

    def place(self, loop: Loop) -> Place:
        """Where the iterations of a ``block`` loop run."""
        return self._places[id(loop)]

    def _number(self, tree: Tree, below: int | None) -> None:
        if isinstance(tree, Loop) and tree.kind == "block":
            stride = _width(tree.body)
            self._places[id(tree)] = Place(stride, below)
            below = stride
        for child in children(tree):
            self._number(child, below)

    def is_every_lane(self, around: Iterable[Tree]) -> bool:
        """Do all lanes of a warp the same inside of the loops ``around``?"""
        return self.lanes > 1 and not any(isinstance(n, Loop) and n.kind == "warp" for n in around)

    def is_one_group(self, around: Iterable[Tree]) -> bool:
        """Does each iteration of the loops ``around`` have a group of its own?"""
        below: int | None = None
        for loop in block_loops(around):
            if self.place(loop).below != below:
                return False
            below = self.place(loop).stride
        return (self.groups if below is None else below) == 1


def is_mapped(tree: Tree) -> bool:
    """Does it run on blocks, warps or lanes, or has no loops to run on them?"""
    return not loops(tree) or Threads(tree).is_used


def _width(tree: Tree) -> int:
    """Groups that the block loops of ``tree`` need."""
    inside = max((_width(c) for c in children(tree)), default=1)
    if not isinstance(tree, Loop) or tree.kind != "block":
        return inside
    if not isinstance(tree.extent, int):
        raise IllegalSchedule(f"the block loop over {tree.param} has {tree.extent} iterations; expected a number")
    return inside * max(tree.extent, 1)


def block_loops(around: Iterable[Tree]) -> list[Loop]:
    """The ``block`` loops among the nodes around another one, outermost first."""
    return [n for n in around if isinstance(n, Loop) and n.kind == "block"]


def copies(around: Iterable[Tree]) -> int:
    """Instances that a shared local has in a block: one for each iteration of the block loops around its ``Alloc``."""
    return prod(int(n.extent) for n in block_loops(around))


def shared_bytes(kernel: Kernel, tree: Tree, bodies: Mapping[int, StatementInstance]) -> int:
    """Bytes that the threads of a block share: locals, and what collective operations of a block exchange.

    Raises IllegalSchedule for a shared local whose size is no number.
    """
    threads, total = Threads(tree), 0
    for node, around in walk(tree):
        if isinstance(node, Alloc) and node.scope == "shared":
            dtype, shape = kernel.locals[node.array]
            if not all(isinstance(n, int) for n in shape):
                raise IllegalSchedule(f"the shared local {node.array} has the shape {shape}; expected numbers")
            total += max(int(prod(shape)), 1) * copies(around) * types.itemsize(dtype)
        if isinstance(node, Accumulate) and node.across == "block":
            total += threads.count * sum(types.itemsize(accumulated_dtype(bodies, p)) for p in node.partials)
    return total


def accumulated_dtype(bodies: Mapping[int, StatementInstance], partial: Partial) -> types.DType:
    """The element type of the accumulator of ``partial``."""
    target = bodies[partial.statement].writes[partial.connector]
    own = types.compute_type(target.buffer.dtype)
    assert target.wcr is not None
    return accumulator_type(own, target.wcr) if partial.wide else own
