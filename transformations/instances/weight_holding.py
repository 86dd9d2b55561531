"""Prepare the weights of convolutions and products once for all iterations of the loops around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import dace

from daceopt.ir.control.region import Repeat, regions
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction, DenseNode
from daceopt.ir.scalar import expression_text
from daceopt.ir.scalar.dims import dim, hint
from daceopt.ir.scalar.symbols import is_counter
from daceopt.passes.transform import NearMiss, Site, Transformation, label_of

_Steady = dict[str, tuple[str, ...]]  # array -> the loops, the innermost last, in whose iterations it is the same

_ROWS = 32  # of a product in all iterations together: of fewer, packing costs more than it saves
_MOST = 512  # rows of one product: of more, packing is a small part of what a library does


@dataclass(frozen=True)
class WeightHolding(Transformation):
    """Let convolutions and products in loops keep the weights that all iterations share as their library wants them.

    before:  for t: h[t] = h[t - 1] @ w
    after:   w' = packed(w); for t: h[t] = h[t - 1] @ w'

    A library takes weights in a layout of its own, into which it copies them at each call
    (docs/decisions/dense-libraries.md). In a loop it does so in the first iteration, into memory of the call. Layers of
    recurrent networks have this form: a step of an LSTM (16 rows, 512 x 2048, kept by PyTorch as (out, in)) took
    0.67 ms by oneDNN on one core of an AMD EPYC, 0.57 by rows that lie dense, and 0.34 by panels that are packed once.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True
    changes_dataflow: ClassVar[bool] = False

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        for loop in regions(graph):
            if not isinstance(loop, Repeat):
                continue
            calls = []
            for body, node, loops, trips in _inside(loop, dict.fromkeys(_captures(loop), ()), (), 1):
                few = isinstance(node, Contraction) and self._why_not(body, node, trips)
                if few:
                    yield NearMiss(node, few)
                else:
                    calls.append((node, loops))
            if calls:
                title = f"{len(calls)} call{'s' * (len(calls) > 1)} in {label_of(loop)}"
                yield Site(graph, (loop,), {"calls": calls, "title": title})

    def _why_not(self, body: Graph, node: Contraction, trips: int) -> str | None:
        names = node.operands(body)
        shape, rows = body.shape(names["Y"]), hint(body.shape(names["A"])[-2])
        if len(shape) != 2 or body.dtype(names["B"]) not in (dace.float32, dace.float64, *body.options.factors):
            return f"nothing holds a factor of {body.dtype(names['B'])} in a product of {len(shape)} dimensions"
        if rows > _MOST:
            return f"{rows} rows hide what packing costs"
        return f"{rows * trips} rows in {trips} iterations do not pay for packing" if rows * trips < _ROWS else None

    def apply(self, site: Site) -> None:
        for node, loops in site["calls"]:
            node.held_over = list(loops)


def _captures(loop: Repeat) -> list[str]:
    """What the body reads of the graph around, and constants: the same in each iteration."""
    return [*loop.captures[0], *loop.body.constants]


def _inside(
    loop: Repeat, steady: _Steady, around: tuple[str, ...], trips: int
) -> Iterator[tuple[Graph, Any, tuple[str, ...], int]]:
    """(body, call, loops, iterations) for the calls of a body that may hold their weights.

    ``steady``: its array -> the loops ``around`` that leave it; ``trips``: iterations of the loops around.
    """
    if loop.trips is None:
        return
    body, loops, trips = loop.body, (*around, _start(loop)), trips * hint(loop.trips)
    steady_inside = {name: (*before, loops[-1]) for name, before in steady.items()}
    for node in body.nodes():
        if isinstance(node, DenseNode) and node.weights and not node.held_over:
            held = _holding_loops(body, node, steady_inside)
            if held and trips > 1:
                yield body, node, held, trips
        if isinstance(node, Repeat):
            reads = body.reads(node)
            inner = {name: _steady_in(body, reads[c], steady_inside) for name, c in node.captures[0].items()}
            yield from _inside(node, inner | dict.fromkeys(node.body.constants, loops), loops, trips)


def _holding_loops(body: Graph, node: DenseNode, steady: _Steady) -> tuple[str, ...]:
    """The loops in which the weights of a call are the same, and the factors with which they are prepared."""
    reads = body.reads(node)
    own_loops = [_steady_in(body, reads[c], steady) for c in (node.weights, "S") if c in reads]
    return tuple(loop for loop in own_loops[0] if all(loop in loops for loops in own_loops))


def _start(loop: Repeat) -> str:
    """A loop as ``held_over`` names it."""
    if not loop.descending:
        return str(loop.counter)
    assert loop.trips is not None
    return f"{loop.counter} from {expression_text.text(dim(loop.trips - 1))}"


def _steady_in(body: Graph, name: str, steady: _Steady) -> tuple[str, ...]:
    """The loops in which an array of ``body`` is the same; none where it moves with a counter."""
    root, offset = body.root(name)
    moves = any(is_counter(s) for s in getattr(offset, "free_symbols", ()))
    return () if moves else steady.get(root, ())
