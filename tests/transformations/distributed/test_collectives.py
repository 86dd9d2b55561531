"""Reductions over ranks as nodes: inserted, put into buckets, placed; ranks are simulated by the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace
import numpy as np
import pytest

from daceopt import libs
from daceopt.codegen.memory_plan import plan
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.control.imported import Reduction
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.collective import AllReduceStart, AllReduceWait, Collective, sequence_number
from daceopt.ir.scalar import types
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.ops.core.simulated_ranks import reducing
from daceopt.passes.transform import NearMiss
from daceopt.transformations.distributed._averaging import average_gradient
from daceopt.transformations.distributed.collective_placement import CollectivePlacement, sequence_of
from daceopt.transformations.distributed.tensor_fusion import TensorFusion
from daceopt.transformations.partition.cluster_extraction import sub_graphs

SHAPES = {"a": (3, 4), "b": (5,), "c": (), "d": (2, 1, 2)}
NAMES = tuple(SHAPES)


def gradients(world: int = 2, dtypes: Sequence[str] = ("float32",) * 4) -> Graph:
    """Each gradient is twice an input; each average is used once."""
    graph = Graph("gradients")
    b = Builder(graph)
    reduction = Reduction("0", world, dict(enumerate(NAMES)))
    for (name, shape), dtype in zip(SHAPES.items(), dtypes):
        x = graph.add_input(name, shape, types.from_name(dtype))
        gradient = b.elementwise(lambda v: 2 * v, x, dtype=graph.dtype(x))
        average = average_gradient(graph, str(gradient), name, reduction)
        graph.add_output(str(b.elementwise(lambda v: v + 1, average, dtype=graph.dtype(x))))
    return graph


def values() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {n: generator.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def run(graph: Graph, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = interpret(graph, {n: given[n.rpartition("_")[0] or n] for n in graph.inputs}, np.float64)
    return [found[n] for n in graph.outputs]


def check(graph: Graph, world: int = 2) -> list[tuple[str, ...]]:
    """Numbers with ranks that bring different summands; returns the reductions in the order of their starts."""
    graph.validate()
    given, calls = values(), []

    def others(parameters: tuple[str, ...], summand: np.ndarray) -> np.ndarray:
        calls.append(parameters)
        total = summand.copy()  # the others bring 7 for each element of "b", and nothing else
        start = 0
        for name in parameters:
            count = int(np.prod(SHAPES[name]))
            total.reshape(-1)[start : start + count] += 7 if name == "b" else 0
            start += count
        return total

    with reducing(others):
        found = run(graph, given)
    for value, (name, x) in zip(found, given.items(), strict=True):
        expected = 2 * x.astype(np.float64) / world + (7 if name == "b" else 0) + 1
        np.testing.assert_allclose(value, expected, rtol=1e-15)
    return calls


@pytest.mark.parametrize("world", [1, 2, 3, 48])
def test_an_average_divides_before_it_sums(world: int) -> None:
    graph = gradients(world)
    assert check(graph, world) == [(n,) for n in NAMES]
    given = values()
    for value, x in zip(run(graph, given), given.values()):  # ranks that are alike
        np.testing.assert_allclose(value, 2 * x.astype(np.float64) + 1, rtol=1e-15)


BUCKETS = (("d", "b"), ("c",), ("a", "missing"))


def test_a_bucket_is_one_buffer_of_which_gradients_are_parts() -> None:
    graph = gradients()
    outcome = TensorFusion(BUCKETS).run(graph)
    assert outcome.sites == ["bucket 0 of 2 gradients", "bucket 1 of 1 gradients", "bucket 2 of 1 gradients"]
    assert sorted(check(graph)) == [("a",), ("c",), ("d", "b")]
    (start,) = (n for n in graph.nodes() if isinstance(n, AllReduceStart) and len(n.parameters) == 2)
    whole = graph.reads(start)["X"]
    assert graph.shape(whole) == (9,) and [graph.part(p).starts for p in graph.parts_of(whole)] == [(0,), (4,)]
    assert not TensorFusion(BUCKETS).run(graph).sites
    written = {graph.reads(n)["X"]: graph.writes(n)["Y"] for n in graph.nodes() if isinstance(n, AllReduceWait)}
    places = plan(graph).arena
    assert all(places[x] == places[y] for x, y in written.items())  # the sum stands where its summands stood


def test_a_bucket_has_one_element_type() -> None:
    graph = gradients(dtypes=("float32", "float64", "float32", "float32"))
    found = list(TensorFusion((("a", "b"), ("c", "d"))).match(graph))
    assert isinstance(found[0], NearMiss) and "expected one type" in str(found[0])
    assert not isinstance(found[1], NearMiss)


@pytest.mark.parametrize("buckets", ["a", ("a",), 3])
def test_what_is_no_list_of_buckets_is_refused(buckets: Any) -> None:
    with pytest.raises(DaceoptError, match="expected a list of lists"):
        TensorFusion(buckets)


def kinds(graph: Graph) -> list[str]:
    """What runs in which order; a collective by its first parameter."""
    found = []
    for node in graph.nodes():
        if isinstance(node, AllReduceStart):
            found.append(f"start {node.parameters[0]}")
        elif isinstance(node, AllReduceWait):
            start = graph.producer(graph.reads(node)["Handle"])
            found.append(f"wait {start.parameters[0]}")
        elif isinstance(node, Collective):
            found.append(type(node).__name__)
        else:
            found.append("k")
    return found


def placed(wait: str) -> Graph:
    graph = gradients()
    TensorFusion(BUCKETS).run(graph)
    assert len(CollectivePlacement(wait).run(graph).sites) == 1
    return graph


def test_starts_follow_what_they_sum_and_waits_stand_at_their_use() -> None:
    graph = placed("use")
    assert check(graph) == [("d", "b"), ("c",), ("a",)]
    started = "AgreementStart k k k k AgreementWait start d k k start c k k start a"
    assert " ".join(kinds(graph)) == f"{started} wait d k k wait c k wait a k"


def test_waits_may_all_stand_before_what_uses_them() -> None:
    graph = placed("end")
    assert check(graph) == [("d", "b"), ("c",), ("a",)]
    assert sorted(kinds(graph)[-7:-4]) == ["wait a", "wait c", "wait d"] and kinds(graph)[-4:] == ["k"] * 4


def test_an_early_bucket_starts_before_later_gradients_are_computed() -> None:
    graph = gradients()
    TensorFusion((("a",), ("b",), ("c", "d"))).run(graph)
    CollectivePlacement().run(graph)
    order = kinds(graph)
    behind = order[order.index("start a") + 1 : order.index("start c")]
    assert "k" in behind


def test_what_is_computed_for_a_reduction_alone_runs_as_soon_as_it_can() -> None:
    graph = gradients()
    TensorFusion((("a",), ("b",), ("c", "d"))).run(graph)
    late = [n for n in graph.nodes() if set(graph.outputs_of(n)) & {graph.reads(s)["X"] for s in _starts(graph)}]
    waits = [n for n in graph.nodes() if not isinstance(n, Collective) and n not in late]
    first = [n for n in waits if all(name in graph.inputs for name in graph.inputs_of(n))]
    graph.order = [*first, *(n for n in graph.nodes() if n not in first)]  # all gradients, then all summands
    CollectivePlacement().run(graph)
    assert check(graph) == [("a",), ("b",), ("c", "d")]
    order = kinds(graph)
    assert order[: order.index("start a")].count("k") == 2  # the gradient, divided by the world


@pytest.mark.parametrize(("buckets", "between"), [((), [3] * 4), ((("d", "c"), ("b",), ("a",)), [6, 3, 3])])
def test_a_backward_computes_first_what_the_next_start_needs(buckets: Any, between: list[int]) -> None:
    """All of it is computed for some reduction; gradients of weights came last before, as where that saves memory."""
    graph = Graph("chain")
    b, reduction = Builder(graph), Reduction("0", 2, dict(enumerate("dcba")))
    error, errors = graph.add_input("x", (4,), dace.float32), []
    for name in "dcba":
        error = str(b.elementwise(lambda v: v + 1, error))
        errors.append(graph.producer(error))
        average = average_gradient(graph, str(b.elementwise(lambda v: v * v, error)), name, reduction)
        graph.add_output(str(b.elementwise(lambda v: v + 1, average)))
    TensorFusion(buckets).run(graph)
    graph.order = [*errors, *(n for n in graph.nodes() if n not in errors)]
    CollectivePlacement().run(graph)
    text = " ".join(kinds(graph))
    assert [part.split().count("k") for part in text.split("start")[: len(between)]] == between


def _starts(graph: Graph) -> list[AllReduceStart]:
    return [n for n in graph.nodes() if isinstance(n, AllReduceStart)]


def test_starts_are_ordered_by_edges_of_the_graph() -> None:
    graph = placed("use")
    graph.order = None
    assert check(graph) == [("d", "b"), ("c",), ("a",)]
    assert not CollectivePlacement().run(graph).sites


def test_a_sequence_stands_for_names_sizes_types_and_order() -> None:
    def of(buckets: Any, world: int = 2) -> int:
        graph = gradients(world)
        TensorFusion(buckets).run(graph)
        return sequence_of(graph, sorted((n for n in graph.nodes() if isinstance(n, AllReduceStart)), key=_position))

    same = [(["d", "b"], 9, "float32"), (["c"], 1, "float32"), (["a"], 12, "float32")]
    assert of(BUCKETS) == of(BUCKETS) == sequence_number(same, 2)
    others = [of((("b", "d"), ("c",), ("a",))), of((("c",), ("d", "b"), ("a",))), of(BUCKETS, 3)]
    assert len({of(BUCKETS), *others}) == 4


def _position(node: Any) -> int:
    return int(node.position)


def test_graphs_with_collectives_have_a_text() -> None:
    text = render(placed("use"))
    assert render(parse(text)) == text


def test_collectives_are_in_no_cluster() -> None:
    graph = placed("use")
    inside = [n for group in sub_graphs(graph) for n in group]
    assert inside and not any(isinstance(n, Collective) for n in inside)


def test_who_reads_what_is_on_its_way_is_refused() -> None:
    graph = gradients()
    (start, *_) = (n for n in graph.nodes() if isinstance(n, AllReduceStart))
    x = graph.reads(start)["X"]
    graph.add_output(str(Builder(graph).elementwise(lambda v: v, x)))
    with pytest.raises(Unsupported, match=f"{x} is read by others, too"):
        libs.choose(start, graph)


def test_integers_are_not_reduced() -> None:
    graph = Graph("integers")
    x = Builder(graph).copy(graph.add_input("x", (3,), dace.int64))
    handle = graph.add_array("handle", (), dace.int64)
    node = Builder(graph).library(AllReduceStart, {"X": x}, {"Handle": handle})
    with pytest.raises(Unsupported, match="element type"):
        libs.choose(node, graph)
