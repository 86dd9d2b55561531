"""The equal layers of a network: what a recipe runs on, and what its result means for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import sympy

from daceopt.errors import UnequalLayers
from daceopt.ir.control.imported import Imported
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar.dims import hint
from daceopt.layers.lengthening import lengthen
from daceopt.layers.shortening import Shortened, shorten
from daceopt.passes.runner import bytes_moved
from daceopt.passes.step import Step

logger = logging.getLogger("daceopt.recipe")


@dataclass(frozen=True)
class EqualLayers:
    """``full``, and how it becomes shorter: each of ``cuts`` takes layers of one kind out of what the one before has
    left, as of an encoder, then of a decoder."""

    full: Imported
    cuts: tuple[Shortened, ...] = ()

    @property
    def short(self) -> Imported:
        """What a recipe runs on."""
        return self.cuts[-1].short if self.cuts else self.full

    def shorten(self) -> EqualLayers:
        """The same without the layers that others are equal to."""
        try:
            cut = shorten(self.short)
        except UnequalLayers as reason:
            logger.info("layers that look alike are not equal: %s", reason)
            return self
        return self if cut is None else EqualLayers(self.full, (*self.cuts, cut)).shorten()

    def lengthen(self, program: Program) -> Program:
        """What a recipe made of ``short``, for all layers. Raises UnequalLayers."""
        for cut in reversed(self.cuts):
            program = lengthen(program, cut)
        return program

    def scale(self, history: Iterable[Step], program: Program) -> list[Step]:
        """The records of what ran on ``short``, with the nodes and bytes of all layers: in proportion to what is in the
        end in each graph of ``program``, which has all of them."""
        records = list(history)
        if not self.cuts:
            return records
        last = {step.graph: step for step in records}
        graphs = {graph.name: graph for graph in program.directions()}
        ratios = {name: _Ratio.of(last[name], graph) for name, graph in graphs.items() if name in last}
        return [ratios[step.graph].of_all_layers(step) if step.graph in ratios else step for step in records]


@dataclass(frozen=True)
class _Ratio:
    """How many times as many nodes and bytes there are with all layers."""

    nodes: float
    moved: float

    @classmethod
    def of(cls, last: Step, graph: Graph) -> _Ratio:
        """``last``: the record of the last step."""
        few, many = hint(last.bytes_after), hint(bytes_moved(graph))
        return cls(len(graph.nodes()) / max(1, last.nodes_after), many / max(1, few))

    def of_all_layers(self, step: Step) -> Step:
        """The record of a step, as if it had run on all layers."""
        return replace(
            step,
            nodes_before=round(self.nodes * step.nodes_before),
            nodes_after=round(self.nodes * step.nodes_after),
            bytes_before=_scale(step.bytes_before, self.moved),
            bytes_after=_scale(step.bytes_after, self.moved),
        )


def _scale(count: Any, ratio: float) -> Any:
    """A count, or an expression over sizes, times ``ratio`` to a thousandth."""
    if isinstance(count, sympy.Expr):
        return sympy.Rational(round(1000 * ratio), 1000) * count
    return round(ratio * count)
