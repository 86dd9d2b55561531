"""A start and its wait for one array, by the kind of exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dace

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.collective import (
    AllGatherStart,
    AllGatherWait,
    AllReduceStart,
    AllReduceWait,
    ReduceScatterStart,
    ReduceScatterWait,
)

Common = Mapping[str, Any]  # what a start says: its group and world, as its wait does, its parameters and position


def all_reduced(graph: Graph, own: str, common: Common) -> str:
    """The sum over all ranks of ``own``, an array that nothing else reads."""
    b, handle = Builder(graph, "exchange"), _handle(graph)
    b.library(AllReduceStart, {"X": own}, {"Handle": handle}, **common)
    total = graph.add_array("average", graph.shape(own), graph.dtype(own))
    b.library(AllReduceWait, {"Handle": handle, "X": own}, {"Y": total}, **_common(common))
    return total


def reduce_scattered(graph: Graph, rows: str, common: Common) -> str:
    """This rank's row of the sum over all ranks of ``rows`` [world, elements], an array that nothing else reads."""
    b, handle = Builder(graph, "exchange"), _handle(graph)
    dtype, shape = graph.dtype(rows), graph.shape(rows)
    received = graph.add_array("received", shape, dtype)
    b.library(ReduceScatterStart, {"X": rows}, {"Handle": handle, "Received": received}, **common)
    shard = graph.add_array("shard", shape[1:], dtype)
    b.library(ReduceScatterWait, {"Handle": handle, "X": rows, "Received": received}, {"Y": shard}, **_common(common))
    return shard


def all_gathered(graph: Graph, shard: str, common: Common) -> str:
    """The shards [elements] of all ranks as rows [world, elements]."""
    b, handle = Builder(graph, "exchange"), _handle(graph)
    rows = (common["world"], *graph.shape(shard))
    arriving, complete = (graph.add_array(hint, rows, graph.dtype(shard)) for hint in ("arriving", "complete"))
    b.library(AllGatherStart, {"X": shard}, {"Handle": handle, "Gathered": arriving}, **common)
    b.library(AllGatherWait, {"Handle": handle, "X": arriving}, {"Y": complete}, **_common(common))
    return complete


def _handle(graph: Graph) -> str:
    return graph.add_array("handle", (), dace.int64)


def _common(common: Common) -> dict[str, Any]:
    return {"group": common["group"], "world": common["world"]}
