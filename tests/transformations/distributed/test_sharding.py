"""Updates in shards as nodes: ranks are threads in which the interpreter runs one graph; their exchanges meet."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dace
import numpy as np
import pytest

from daceopt import libs
from daceopt.errors import Unsupported
from daceopt.ir.control.imported import Reduction
from daceopt.ir.data.shards import shard_elements
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.collective import (
    AllGatherStart,
    AllReduceStart,
    Collective,
    CollectiveStart,
    ReduceScatterStart,
    Unshard,
)
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.ops.core.simulated_ranks import reducing
from daceopt.transformations.distributed._averaging import add_sum
from daceopt.transformations.distributed._sharding import gather, own_shard, scatter
from daceopt.transformations.distributed.collective_placement import CollectivePlacement, sequence_of
from daceopt.transformations.distributed.tensor_fusion import TensorFusion

SHAPES = {"a": (3, 4), "b": (5,), "c": (), "d": (2, 1, 2)}
NAMES = tuple(SHAPES)
BUCKETS = (("d", "b"), ("c",), ("a", "missing"))


def updates(world: int, norm: bool = False) -> Graph:
    """w - (average of 2 g) of each parameter; with ``norm``: times the sum of squares of all averages."""
    graph = Graph("updates")
    b, reduction = Builder(graph), Reduction("0", world, dict(enumerate(NAMES)))
    shards: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        g, w = (graph.add_input(f"{kind}_{name}", shape, dace.float32) for kind in "gw")
        doubled = str(b.elementwise(lambda v: 2 * v, g, dtype=dace.float32))
        shards[name] = scatter(graph, doubled, name, reduction), own_shard(graph, w, reduction)
    squares = [b.reduce("sum", lambda v: v * v, g, axes=(0,)) for g, _ in shards.values()] if norm else []
    total = None
    if squares:
        own = b.copy(b.reshape(b.elementwise(lambda *v: sum(v), *squares), (1,)))
        total = add_sum(graph, own, reduction)
    for name, (g, w) in shards.items():
        scaled = g if total is None else b.elementwise(lambda x, t: x * t, g, total)
        new = str(b.elementwise(lambda v, x: v - x, w, scaled, dtype=dace.float32))
        graph.add_output(gather(graph, new, SHAPES[name], name, reduction))
    return graph


def values(rank: int) -> dict[str, np.ndarray]:
    """Gradients of a rank, and parameters that all have."""
    draws = {kind: np.random.default_rng(seed) for kind, seed in (("g", rank + 1), ("w", 0))}
    return {f"{k}_{n}": draws[k].standard_normal(s).astype(np.float32) for k in "gw" for n, s in SHAPES.items()}


def given(graph: Graph, rank: int) -> dict[str, np.ndarray]:
    return {name: values(rank)[name.rpartition("_")[0]] for name in graph.inputs}


def run(graph: Graph, world: int) -> tuple[list[list[np.ndarray]], list[tuple[str, ...]]]:
    """Outputs of each rank, and what the first exchanged, in turn."""
    meeting, brought, calls = threading.Barrier(world, timeout=60), [np.empty(0)] * world, []

    def rank(own: int) -> list[np.ndarray]:
        def meet(parameters: tuple[str, ...], value: np.ndarray) -> np.ndarray:
            if own == 0:
                calls.append(parameters)
            brought[own] = value.copy()
            meeting.wait()
            every = np.stack(brought)
            meeting.wait()
            return every

        with reducing(lambda names, x: meet(names, x).sum(0), meet, own):
            found = interpret(graph, given(graph, own), np.float64)
        return [found[n] for n in graph.outputs]

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(rank, range(world))), calls


def check(graph: Graph, world: int, norm: bool = False) -> list[tuple[str, ...]]:
    graph.validate()
    outputs, calls = run(graph, world)
    exact = {n: np.mean([2 * values(r)[f"g_{n}"].astype(np.float64) for r in range(world)], axis=0) for n in NAMES}
    scale = sum(float((g * g).sum()) for g in exact.values()) if norm else 1.0
    for own in outputs:
        for name, value in zip(NAMES, own, strict=True):
            assert value.shape == SHAPES[name]
            np.testing.assert_allclose(value, values(0)[f"w_{name}"] - scale * exact[name], rtol=1e-12, atol=1e-12)
    return calls


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("norm", [False, True])
def test_shards_of_all_ranks_are_the_whole(world: int, norm: bool) -> None:
    calls = check(updates(world, norm), world, norm)
    assert sorted(c for c in calls if c) == sorted([(n,) for n in NAMES] * 2)


@pytest.mark.parametrize("wait", ["use", "end"])
@pytest.mark.parametrize("norm", [False, True])
def test_buckets_hold_rows_of_all_their_parameters(wait: str, norm: bool) -> None:
    graph = updates(2, norm)
    sites = TensorFusion(BUCKETS).run(graph).sites
    assert sites[:2] == ["bucket 0 of 2 gradients", "bucket 0 of 2 shards"] and len(sites) == 6
    assert not TensorFusion(BUCKETS).run(graph).sites
    (scatter,) = (n for n in graph.nodes() if isinstance(n, ReduceScatterStart) and len(n.parameters) == 2)
    whole = graph.reads(scatter)["X"]
    assert graph.shape(whole) == (2, 5) and [graph.part(p).starts for p in graph.parts_of(whole)] == [(0, 0), (0, 2)]
    reductions = 4 if norm else 3
    assert CollectivePlacement(wait).run(graph).sites == [f"{reductions} reductions, 3 all-gathers"]
    rows = [("d", "b"), ("c",), ("a",)]
    assert check(graph, 2, norm) == [*rows, *([()] if norm else []), *rows]
    graph.order = None
    assert check(graph, 2, norm) == [*rows, *([()] if norm else []), *rows]  # edges order them, too


def test_gathers_start_as_soon_as_a_bucket_is_updated() -> None:
    graph = updates(2)
    TensorFusion(BUCKETS).run(graph)
    CollectivePlacement().run(graph)
    kinds = [type(n).__name__ for n in graph.nodes() if isinstance(n, Collective)]
    turns = [k for k in kinds if k.startswith(("ReduceScatter", "AllGather"))]
    between = ["ReduceScatterWait", "AllGatherStart"] * 3
    assert turns == ["ReduceScatterStart"] * 3 + between + ["AllGatherWait"] * 3


def test_a_sequence_tells_shards_from_sums() -> None:
    graph = updates(2)
    starts = [n for n in graph.nodes() if isinstance(n, CollectiveStart)]
    scatters = [n for n in starts if isinstance(n, ReduceScatterStart)]
    reduces = [AllReduceStart(parameters=list(n.parameters)) for n in scatters]
    numbers = {sequence_of(graph, scatters), sequence_of(graph, starts)}
    for old, new in zip(scatters, reduces):
        x, handle = graph.reads(old)["X"], graph.add_array("handle", (), dace.int64)
        graph.add_node(new, {"X": x}, {"Handle": handle})
    assert len({*numbers, sequence_of(graph, reduces)}) == 3


def test_graphs_with_shards_have_a_text() -> None:
    graph = updates(3, norm=True)
    CollectivePlacement().run(graph)
    assert render(parse(render(graph))) == render(graph)


def test_alone_no_rank_knows_the_shards_of_others() -> None:
    with pytest.raises(Unsupported, match="needs the shards of all ranks"):
        interpret(graph := updates(2), given(graph, 0), np.float64)


@pytest.mark.parametrize(("elements", "world", "expected"), [(12, 3, 4), (13, 3, 5), (1, 4, 1), (0, 2, 0)])
def test_shards_are_of_one_length(elements: int, world: int, expected: int) -> None:
    assert shard_elements(elements, world) == expected


def test_rows_with_gaps_inside_are_refused() -> None:
    graph = Graph("gaps")
    x = graph.add_array("x", (2, 3), dace.float32, (6, 2))
    node = Builder(graph).library(Unshard, {"X": x}, {"Y": graph.add_array("y", (6,), dace.float32)})
    with pytest.raises(Unsupported, match="rows of x_1 must be contiguous"):
        libs.choose(node, graph)


def test_integers_are_not_gathered() -> None:
    graph = Graph("integers")
    x, handle = graph.add_input("x", (3,), dace.int64), graph.add_array("handle", (), dace.int64)
    rows = graph.add_array("rows", (2, 3), dace.int64)
    node = Builder(graph).library(AllGatherStart, {"X": x}, {"Handle": handle, "Gathered": rows})
    with pytest.raises(Unsupported, match="element type"):
        libs.choose(node, graph)
