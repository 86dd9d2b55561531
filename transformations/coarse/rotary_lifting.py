"""Rotary positions from the slices, negations and concatenations that exporters emit."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.graph.operators import int_list
from daceopt.ops.families.rotary import DOMAIN, NAME
from daceopt.passes.patterns import Match, Op, PatternRule, either, op

_FIRST = either(*(op(types, "x", ...).named("first").shared() for types in ("Slice", "Split")))
_SECOND = either(
    op("Slice", "x", ...).named("second").shared(), op("Split", "x", ...).result(1).named("second").shared()
)
_HALVES = op("Concat", op("Neg", _SECOND).named("negated"), _FIRST).named("turned")
_NEIGHBOURS = op(
    "Reshape",
    op(
        "Concat",
        op("Unsqueeze", op("Neg", op("Slice", "x", ...).named("second").shared()).named("negated"), ...).named("left"),
        op("Unsqueeze", op("Slice", "x", ...).named("first").shared(), ...).named("right"),
    ).named("stacked"),
    ...,
).named("turned")


@dataclass(frozen=True)
class RotaryLifting(PatternRule):
    """One Rotary, a single pass over x that is as easy to differentiate.

    before:  y = x * cos + Concat(Neg(x[..., n:]), x[..., :n]) * sin
    after:   y = Rotary(x, cos, sin)

    Or of neighbours: Reshape(Concat(Unsqueeze(Neg(x[..., 1::2])), Unsqueeze(x[..., ::2]))) turns pairs as well.
    """

    thing = "the rotation"
    pattern = op(
        "Add",
        op("Mul", either(_HALVES, _NEIGHBOURS), "sin").named("across"),
        op("Mul", "x", "cos").named("along"),
    )

    def why_not(self, m: Match) -> str | None:
        shape, graph = m.shape("x"), m.graph
        if m.shape("turned") != shape or graph.shape(m.result) != shape:
            return f"what is turned has shape {m.shape('turned')}, {m['x']} has {shape}"
        if not shape or not isinstance(shape[-1], int) or shape[-1] % 2:
            return f"features of shape {shape}: expected an even number along the last axis"
        for name in ("cos", "sin"):
            angles = m.shape(name)
            if not angles or angles[-1] != shape[-1]:
                return f"the {name} {m[name]} of shape {angles} has no value for each of the features of {shape}"
        return _other_halves(m)

    def replace(self, m: Match) -> Op:
        return op(f"{DOMAIN}::{NAME}", "x", "cos", "sin", interleaved=int("stacked" in m))


def _other_halves(m: Match) -> str | None:
    """Why the slices are not the two elements of each pair."""
    rank, size = len(m.shape("x")), int(m.shape("x")[-1])
    if "stacked" in m:
        slices = [(0, size, 2), (1, size, 2)]
        axes = [(int_list(m.graph, m.node(n), "axes", 1) or [0])[0] % (rank + 1) for n in ("left", "right")]
        joined = m.node("stacked").attribute("axis") % (rank + 1)
        if {*axes, joined} != {rank}:
            return f"pairs are put side by side along {axes} and axis {joined}, expected axis {rank}"
    else:
        slices = [(0, size // 2, 1), (size // 2, size, 1)]
        axis = m.node("turned").attribute("axis") % rank
        if axis != rank - 1:
            return f"halves of axis {axis} are exchanged, expected the last"
    ranges = [_range(m, n, size) for n in ("first", "second")]
    return None if ranges == slices else f"the slices are {ranges} of the last axis, expected {slices}"


def _range(m: Match, name: str, size: int) -> tuple[int, int, int] | None:
    """Start, end and step of a part of the last axis; None for any other."""
    graph, node = m.graph, m.node(name)
    rank = len(m.shape("x"))
    if node.op_type == "Split":
        halves = [n for n in graph.outputs_of(node)[:2] if n is not None]
        if len(halves) < 2 or node.attribute("axis", 0) % rank != rank - 1:
            return None
        first, second = (graph.shape(n)[-1] for n in halves)
        return (0, first, 1) if name == "first" else (first, first + second, 1)
    starts, ends, axes = (int_list(graph, node, n, k + 1) for k, n in enumerate(("starts", "ends", "axes")))
    steps = int_list(graph, node, "steps", 4) or [1]
    if starts is None or ends is None or len(starts) != 1 or (axes or [0])[0] % rank != rank - 1:
        return None
    start, end, step = slice(starts[0], ends[0], steps[0]).indices(size)
    return start, end, step
