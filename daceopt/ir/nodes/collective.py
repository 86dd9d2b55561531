"""Collective operations as nodes: what starts one, and what waits for it.

A start writes a handle, a small array that its wait reads; an optional handle ``After`` orders starts, which are the
same sequence on all ranks. Between the two the operand belongs to the collective: nothing else reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import dace.library
import sympy
from dace.properties import ListProperty, Property, make_properties

from daceopt.ir.nodes.library import DenseNode
from daceopt.ir.scalar import types

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph


ENDED = -1
"""What a rank that has no more batches tells in the place of a sequence (``daceopt/process_group.h`` knows it, too)."""


Exchanged: TypeAlias = "tuple[Sequence[str], int, str]"
"""The parameters whose values are exchanged together, how many elements they have, and of which type."""


def sequence_number(reductions: Iterable[Exchanged], world: int) -> int:
    """A number of 62 bits that stands for reductions in their order."""
    return _number(json.dumps([world, *([list(names), count, dtype] for names, count, dtype in reductions)]))


def listed_number(what: str, names: Iterable[str]) -> int:
    """The same for an exchange of ``names`` from outside of programs."""
    return _number("\n".join([what, *names]))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


@make_properties
class Collective(DenseNode):
    """Base of the nodes: ``group`` is the name of a process group of torch.distributed, of ``world`` ranks.

    What fails in one fails on all ranks and ends the job, so nodes that write over arguments need not wait for it
    (``sure``); the call raises ArgumentsChanged then.
    """

    group = Property(dtype=str, default="0", desc="Name of the process group")
    world = Property(dtype=int, default=1, desc="Ranks of the group")
    sure: ClassVar[bool] = True
    computes: ClassVar[bool] = False

    def flops(self, graph: Graph) -> sympy.Expr:
        return sympy.Integer(0)


@make_properties
class CollectiveStart(Collective):
    """Base of what starts an exchange of the values of ``parameters``, or of numbers that stand for none."""

    optional: ClassVar[tuple[str, ...]] = ("After",)
    title: ClassVar[str] = ""  # how messages call it
    parameters = ListProperty(element_type=str, default=[], desc="Names of the parameters whose values are exchanged")
    position = Property(dtype=int, default=0, desc="When it starts: the same number on all ranks")


class CollectiveWait(Collective):
    """Base of what waits for a start, by its ``Handle``."""


def exchanges_of(graph: Graph, starts: Iterable[CollectiveStart]) -> list[Exchanged]:
    """What ``starts`` exchange, in their order; what is no plain sum has its title before the parameters."""
    exchanges: list[Exchanged] = []
    for node in starts:
        operand, kind = graph.reads(node)["X"], [] if isinstance(node, AllReduceStart) else [node.title]
        names = [*kind, *node.parameters]
        exchanges.append((names, int(graph.size(operand)), types.name_of(graph.dtype(operand))))
    return exchanges


@dace.library.node
class AllReduceStart(CollectiveStart):
    """Start the sum of X over all ranks, in the memory of X. ``parameters``: whose gradients X has, side by side."""

    required, results = ("X",), ("Handle",)
    title: ClassVar[str] = "reduction"


@dace.library.node
class AllReduceWait(CollectiveWait):
    """Wait for what ``Handle`` stands for: Y is the sum of X over all ranks."""

    required, results = ("Handle", "X"), ("Y",)

    @property
    def in_place(self) -> Mapping[str, str]:
        """Y is where X does."""
        return {"Y": "X"}


@dace.library.node
class ReduceScatterStart(CollectiveStart):
    """Start the sum of X [world, elements] over all ranks, of which each gets one row. Received [world, elements]
    belongs to the collective until its wait."""

    required, results = ("X",), ("Handle", "Received")
    title: ClassVar[str] = "reduce-scatter"


@dace.library.node
class ReduceScatterWait(CollectiveWait):
    """Wait for what ``Handle`` stands for: Y [elements] is the row of this rank of the sum of X over all ranks."""

    required, results = ("Handle", "X", "Received"), ("Y",)


@dace.library.node
class AllGatherStart(CollectiveStart):
    """Start to bring the X [elements] of all ranks together, as the rows of Gathered [world, elements]."""

    required, results = ("X",), ("Handle", "Gathered")
    title: ClassVar[str] = "all-gather"


@dace.library.node
class AllGatherWait(CollectiveWait):
    """Wait for what ``Handle`` stands for: Y is Gathered, with the rows of all ranks."""

    required, results = ("Handle", "X"), ("Y",)

    @property
    def in_place(self) -> Mapping[str, str]:
        """Y is where X does."""
        return {"Y": "X"}


@dace.library.node
class IntoShards(Collective):
    """Y [world, elements] has the elements of X in row-major order, row by row; zeros fill up the last. Nothing is
    exchanged."""

    required, results = ("X",), ("Y",)


@dace.library.node
class OwnShard(Collective):
    """Y [elements] is what this rank has of X: of its elements in row-major order, filled up with zeros, the
    ``rank``-th of ``world`` runs of the same length. Nothing is exchanged."""

    required, results = ("X",), ("Y",)


@dace.library.node
class Unshard(Collective):
    """Y has the elements of X [world, elements], row by row, without those that fill up the last. Nothing is
    exchanged."""

    required, results = ("X",), ("Y",)


@dace.library.node
class AgreementStart(Collective):
    """Tell all ranks which ``sequence`` of collectives follows, by a number that stands for it."""

    optional, results = ("After",), ("Handle",)
    sequence = Property(dtype=int, default=0, desc="Stands for the collectives that follow, and for their order")


@dace.library.node
class AgreementWait(Collective):
    """Wait until all ranks have told; the run ends with an error, which names the rank, where one differs."""

    required, results = ("Handle",), ("Done",)
    sequence = Property(dtype=int, default=0, desc="As the start has it")
