"""Prepare the weights of convolutions once for all iterations of the loops around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.graph import Graph
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData
from daceopt.ir.region import Repeat, regions
from daceopt.ir.symbols import is_counter
from daceopt.passes.transform import Site, Transformation, label_of

Call = tuple[Any, tuple[str, ...]]  # a convolution, and the loops in which its weights are the same


@dataclass(frozen=True)
class WeightHolding(Transformation):
    """Let convolutions in loops keep the weights that all iterations share as their library wants them.

    before:  for k: y[k] = conv(x[k], reordered(w))
    after:   w' = reordered(w); for k: y[k] = conv(x[k], w')

    A library takes weights in a layout of its own, into which it copies them at each call
    (docs/decisions/dense-libraries.md). In a loop it does so in the first iteration, into memory of the call.
    """

    level: ClassVar[str] = "hardware"
    sites_are_independent: ClassVar[bool] = True
    changes_dataflow: ClassVar[bool] = False

    def match(self, graph: Graph) -> Iterator[Site]:
        for loop in regions(graph):
            calls = list(_inside(loop, dict.fromkeys(_captured(loop), ()), ())) if isinstance(loop, Repeat) else []
            if calls:
                title = f"{len(calls)} convolution{'s' * (len(calls) > 1)} in {label_of(loop)}"
                yield Site(graph, (loop,), {"calls": calls, "title": title})

    def apply(self, site: Site) -> None:
        for node, loops in site["calls"]:
            node.held_over = list(loops)


def _captured(loop: Repeat) -> list[str]:
    """What the body reads of the graph around, and constants: the same in each iteration."""
    return [*loop.captures[0], *loop.body.constants]


def _inside(loop: Repeat, steady: dict[str, tuple[str, ...]], around: tuple[str, ...]) -> Iterator[Call]:
    """The convolutions of a body that may hold theirs; ``steady``: its array -> the loops ``around`` that leave it."""
    if loop.descending or loop.trips is None:
        return
    body, loops = loop.body, (*around, str(loop.counter))
    known = {name: (*before, loops[-1]) for name, before in steady.items()}
    for node in body.nodes():
        if isinstance(node, (Convolution, ConvolutionBackwardData)) and not node.held_over:
            held = _steady_in(body, body.reads(node)["W"], known)
            if held:
                yield node, held
        if isinstance(node, Repeat):
            reads = body.reads(node)
            inner = {name: _steady_in(body, reads[c], known) for name, c in node.captures[0].items()}
            yield from _inside(node, inner | dict.fromkeys(node.body.constants, loops), loops)


def _steady_in(body: Graph, name: str, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The loops in which an array of ``body`` is the same, the innermost last; none where it moves with a counter."""
    root, offset = body.root(name)
    moves = any(is_counter(s) for s in getattr(offset, "free_symbols", ()))
    return () if moves else known.get(root, ())
