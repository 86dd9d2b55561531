"""The sub-graphs of APOLLO's figures: their groups exactly, their kernels, their partitions as they print."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from daceopt import ops
from daceopt.ir.graph.graph import Graph
from daceopt.transformations.partition.aggregation import Aggregation
from daceopt.transformations.partition.compound_opening import CompoundOpening
from daceopt.transformations.partition.memory_stitching import MemoryStitching
from tests.transformations.lowered import apply
from tests.transformations.partition import figures

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", figures.FIGURES)
def test_the_partition_prints_as_it_did(name: str) -> None:
    expected = (GOLDEN / f"figure_{name}.txt").read_text(encoding="utf-8")
    assert figures.partitioned(figures.FIGURES[name]()) == expected


def test_figure_3c_the_first_three_become_one_and_the_subtraction_stays_alone() -> None:
    graph = figures.figure_3()
    before = [graph.outputs_of(n)[0] for n in graph.nodes()]
    outcome = apply(Aggregation(), graph)
    assert outcome.sites == ["k + k + k: reduction by 1, 4"]  # as example 2 of the paper says
    groups = [[n for n in before if n in graph.outputs_of(node)] for node in graph.nodes()]
    assert groups == [before[1:3], before[3:]]  # the second operator's result is kept for the subtraction


def test_figure_3b_a_compound_operator_is_a_boundary() -> None:
    """The two primitive operators become one kernel, and LogSoftMax stays what it is; opened later, it is apart."""
    graph = figures.figure_3_with_boundary()
    ops.lower_all(graph, keep=lambda node: node.op_type == "LogSoftmax")
    outcome = Aggregation().run(graph)
    assert [site.partition(":")[0] for site in outcome.sites] == ["tanh + add"]
    assert len(graph.operators()) == 1 and len(graph.kernels()) == 1
    CompoundOpening().run(graph)
    assert not graph.operators()
    assert len(graph.kernels()) > 2


def test_figure_3c_from_a_compound_operator_that_was_opened() -> None:
    graph = figures.figure_3_with_boundary()
    CompoundOpening().run(graph)
    sites = apply(Aggregation(), graph).sites
    assert sites[0].startswith("tanh + add + logsoftmax: reduction by 1, 4")


def test_figure_4_is_cut_at_its_reshape_in_less_than_a_second() -> None:
    """The paper's polyhedral heuristic finds no plan in 30 minutes where rules let the reshape through."""
    graph = figures.figure_4()
    start = time.perf_counter()
    outcome = Aggregation().run(graph)
    assert time.perf_counter() - start < 1
    assert outcome.sites == ["k + k: element-wise by 1", "k + k + k: element-wise by 1"]
    (reshaped,) = (n for n in graph.arrays() if graph.is_view(n))
    assert graph.view_source(reshaped) in graph.outputs_of(graph.nodes()[0])


def _kernels(graph: Graph) -> tuple[int, int, int]:
    """As they are, after Layer I, and after Layers I and II."""
    found = [len(graph.kernels())]
    for step in (Aggregation(), MemoryStitching()):
        apply(step, graph)
        found.append(len(graph.kernels()))
    return found[0], found[1], found[2]


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("5a", (5, 3, 1)),  # Table 3 measures 527, 224 and 98 us: every row of figure 5 gains from either layer
        ("5b", (8, 4, 1)),
        ("5c", (4, 2, 1)),
        ("6a", (5, 4, 4)),  # Layer III has the branches
        ("6b", (5, 4, 4)),
        (
            "6c",
            (23, 15, 15),
        ),  # with Layer III the paper has 3 (section B.5.1)
    ],
)
def test_table_3(name: str, kernels: tuple[int, int, int]) -> None:
    assert _kernels(figures.FIGURES[name]()) == kernels


@pytest.mark.parametrize("name", ["5a", "5b", "5c"])
def test_what_lies_between_micro_graphs_of_figure_5_lives_in_the_kernel(name: str) -> None:
    graph = figures.FIGURES[name]()
    Aggregation().run(graph)
    MemoryStitching().run(graph)
    (kernel,) = graph.kernels()
    assert all(name in (*graph.inputs, *graph.outputs) for name in graph.inputs_of(kernel))
    assert "in thread:" in (GOLDEN / f"figure_{name}.txt").read_text(encoding="utf-8")
