"""Collective operations as nodes: what starts one, and what waits for it.

A start writes a handle, a small array that its wait reads; an optional handle ``After`` orders starts, which are the
same sequence on all ranks. Between the two the operand belongs to the collective: nobody else reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import dace.library
import sympy
from dace.properties import ListProperty, Property, make_properties

from daceopt.ir.nodes.library import DenseNode

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph


ENDED = -1
"""What a rank that has no more batches tells in the place of a sequence (``daceopt/process_group.h`` knows it, too)."""


def sequence_number(reductions: Iterable[tuple[Sequence[str], int, str]], world: int) -> int:
    """A number of 62 bits that stands for reductions (parameters, elements, element type) in their order."""
    said = [world, *([list(names), count, dtype] for names, count, dtype in reductions)]
    return int.from_bytes(hashlib.sha256(json.dumps(said).encode()).digest()[:8], "big") >> 2


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
        """None of this rank's own."""
        return sympy.Integer(0)


@dace.library.node
class AllReduceStart(Collective):
    """Start the sum of X over all ranks, in the memory of X. ``parameters``: whose gradients X has, side by side."""

    required, optional, results = ("X",), ("After",), ("Handle",)
    parameters = ListProperty(element_type=str, default=[], desc="Names of the parameters whose gradients are in X")
    position = Property(dtype=int, default=0, desc="When it starts: the same number on all ranks")


@dace.library.node
class AllReduceWait(Collective):
    """Wait for what ``Handle`` stands for: Y is the sum of X over all ranks."""

    required, results = ("Handle", "X"), ("Y",)
    in_place: ClassVar[dict[str, str]] = {"Y": "X"}


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
