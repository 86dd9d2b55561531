"""One gradient averaged over all ranks of which each gets a part, and one parameter put together again."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from daceopt.ir.control.imported import Reduction
from daceopt.ir.data.shards import shard_elements
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.collective import IntoShards, OwnShard, Unshard
from daceopt.ir.scalar.dims import Dim
from daceopt.transformations.distributed._averaging import common_of, name_values, share_of
from daceopt.transformations.distributed._exchanges import all_gathered, reduce_scattered


def scatter(graph: Graph, gradient: str, parameter: str, reduction: Reduction) -> str:
    """This rank's shard of the average of ``gradient`` over all ranks: an array of rank 1.

    What is summed is an array [world, elements] of its own, which can be in a larger one; zeros fill it up.
    """
    return reduce_scattered(graph, _in_rows(graph, gradient, reduction), name_values(parameter, reduction))


def _in_rows(graph: Graph, gradient: str, reduction: Reduction) -> str:
    """The shares of this rank in the average, a row for each rank."""
    b, dtype, world = Builder(graph, "exchange"), graph.dtype(gradient), reduction.world
    total = prod(graph.shape(gradient))
    shape = (world, shard_elements(total, world))
    if prod(shape) == total:
        return share_of(graph, b.reshape(gradient, shape), reduction)
    rows = graph.add_array("rows", shape, dtype)
    share = share_of(graph, b.reshape(gradient, (total,)), reduction)
    b.library(IntoShards, {"X": share}, {"Y": rows}, **common_of(reduction))
    return rows


def own_shard(graph: Graph, array: str, reduction: Reduction) -> str:
    """This rank's shard of an array that all ranks have: an array of rank 1."""
    b, total = Builder(graph, "exchange"), prod(graph.shape(array))
    shard = graph.add_array("shard", (shard_elements(total, reduction.world),), graph.dtype(array))
    b.library(OwnShard, {"X": b.reshape(array, (total,))}, {"Y": shard}, **common_of(reduction))
    return shard


def gather(graph: Graph, shard: str, shape: Sequence[Dim], parameter: str, reduction: Reduction) -> str:
    """The array of ``shape`` of which each rank has a ``shard``."""
    complete = all_gathered(graph, shard, name_values(parameter, reduction))
    whole = graph.add_array("whole", shape, graph.dtype(shard))
    Builder(graph, "exchange").library(Unshard, {"X": complete}, {"Y": whole}, **common_of(reduction))
    return whole
