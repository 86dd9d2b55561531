"""Weights of a softmax that are 0 where no product could show them."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.graph.operators import is_op
from daceopt.ops.families.softmax import MULTIPLIED
from daceopt.passes.patterns import Match, Op, PatternRule, op

_PRODUCTS = ("MatMul", "Gemm")
_ELEMENTS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Identity", "Dropout", "Cast")
"""Whose results are elements of their first input, or multiples of them."""


def _is_open(m: Match) -> bool:
    return not m.node("softmax").attribute(MULTIPLIED, 0)


@dataclass(frozen=True)
class WeightFlushing(PatternRule):
    """Let the weights of a softmax that only products read be 0 below 2^-100 of the largest.

    A mask of -100, as shifted windows have, makes weights that are subnormal numbers, of which a product takes up to
    thirty times as long. Beside a weight of at least 1/n they are lost in the rounding of a sum. Readers of another
    kind may take a logarithm, so they see each weight as it is.

    before:  y = MatMul(Softmax(s), v)
    after:   y = MatMul(Softmax(s; only_multiplied=1), v)
    """

    pattern = op("Softmax", "x").named("softmax").when(_is_open)

    def why_not(self, m: Match) -> str | None:
        reader = _other_reader(m.graph, m.result)
        return reader and f"the weights are read by {reader}, expected products alone"

    def replace(self, m: Match) -> Op:
        return op("Softmax", "x", **m.node("softmax").attributes, **{MULTIPLIED: 1})


def _other_reader(graph: Graph, name: str) -> str | None:
    """What reads the array, or its elements in another order, and is no product."""
    if any(alias in graph.outputs for alias in graph.aliases(name)):
        return "the caller"
    for reader in graph.all_consumers(name):
        if is_op(reader, *_PRODUCTS):
            continue
        if not is_op(reader, *_ELEMENTS):
            return str(reader.label)
        if (behind := _other_reader(graph, require(graph.outputs_of(reader), 0))) is not None:
            return behind
    return None
