"""Transpose what a loop multiplies by in every iteration once, before the loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from daceopt.ir.builder import Builder
from daceopt.ir.dims import assumed
from daceopt.ir.graph import Graph
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.region import Repeat, drop_operands, operand
from daceopt.ir.region_builder import free_symbols
from daceopt.ir.symbols import is_counter
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class LoopOperandPacking(Transformation):
    """Copy the transposed right factor of a product of few rows, the same in all iterations, to where rows are dense.

    before:  loop t: y = Contraction(h, transpose(R))
    after:   P = copy(transpose(R))    loop t: y = Contraction(h, P)

    Libraries gather a factor that is stored by columns anew in every call, which products of many rows hide: a step of
    an LSTM (16 rows, 512 x 2048) took 0.69 ms by oneDNN on one core of an AMD EPYC, 0.39 with dense rows. Layers of
    recurrent networks have this form: PyTorch keeps their weights as (out, in).

    ``rows``: products of more are left as they are.
    """

    rows: int = 64

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Repeat) or (node.trips is not None and assumed(node.trips) < 2):
            return
        rows = {
            node.body.reads(n)["B"]: node.body.shape(node.body.reads(n)["A"])[-2]
            for n in node.body.nodes()
            if isinstance(n, Contraction) and _is_gathered(node, n)
        }
        for view, count in rows.items():
            if assumed(count) > self.rows:
                yield NearMiss(node, f"{count} rows hide the transposition of {view}")
            else:
                yield Site(graph, (node,), {"view": view})

    def apply(self, site: Site) -> None:
        graph, (node,), view = site.graph, site.nodes, site["view"]
        body = node.body
        array = graph.reads(node)[node.captures[0][body.view_source(view)]]
        shape, dtype = body.shape(view), body.dtype(view)
        seen = graph.add_view(array, "transposed", shape, body.strides(view), body.view_offset(view))
        packed = Builder(graph, "pack").copy(seen)
        inner = body.add_input(view, shape, dtype)
        node.captures[0][inner] = operand(graph, node, packed)
        body.replace_uses(view, inner)
        body.prune()
        drop_operands(graph, node)


def _is_gathered(node: Repeat, product: Contraction) -> bool:
    """Is its right factor a transposed matrix from outside of the loop, which no iteration moves along?"""
    body = node.body
    right = body.reads(product)["B"]
    shape, strides = body.shape(right), body.strides(right)
    if not body.is_view(right) or body.view_source(right) not in node.captures[0] or len(shape) != 2:
        return False
    moves = any(map(is_counter, free_symbols([*shape, *strides, body.view_offset(right)])))
    return not moves and strides[-2] == 1 and strides[-1] != 1 and shape[-2] != 1
