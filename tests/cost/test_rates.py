"""The rates of a machine: plausible, kept, never made worse by a busy moment; and what they make of kernels."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import dace
import pytest
import sympy

from daceopt import recipes
from daceopt.cost import rates as model
from daceopt.cost.kernel_time import KernelTimes, Work
from daceopt.cost.limits import Limits
from daceopt.cost.program_time import ProgramTime, by_node
from daceopt.cost.rates import Rates, assume, rates, typical
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.runner import Runner
from daceopt.store import values
from daceopt.store.cache import Cache

TWO = Rates(2, 1e-8, 1e-6, 1e-11, 1e11, ((1 << 20, 1e11), (1 << 30, 1e10)), ((1 << 21, 2e11), (1 << 30, 15e9)))


def test_what_is_measured_is_plausible() -> None:
    found = model.measure()
    assert 0 <= found.region <= 2 * typical(Limits(found.cores)).region
    assert 1e-13 < found.operation < 1e-8 and found.product > 1e8
    for table in (found.alone, found.together):
        assert all(a[0] < b[0] and a[1] >= b[1] > 1e8 for a, b in pairwise(table))


def test_memory_is_measured_from_the_start_of_a_line() -> None:
    elements = model._ordinary(1000)
    assert elements.shape == (1000,) and elements.dtype == "float32" and elements.flags.writeable
    assert elements.ctypes.data % 64 == 0


def test_the_best_of_all_measurements_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    monkeypatch.setattr(values, "default_cache", lambda: store)
    busy = replace(TWO, region=5e-6, alone=((1 << 20, 1e10), (1 << 30, 2e10)))
    model._own.cache_clear()
    monkeypatch.setattr(model, "measure", lambda: busy)
    assert model._own() == busy
    monkeypatch.setattr(model, "measure", lambda: TWO)
    assert model._own() == busy, "measured once per machine"
    assert model.calibrate() == replace(TWO, alone=((1 << 20, 1e11), (1 << 30, 2e10)))
    model._own.cache_clear()


@pytest.mark.parametrize(
    ("mkl", "other", "faster"),
    [
        ([1.0] * 8, [2.0] * 8, 0.5),  # a quiet machine
        ([2.0] * 8, [1.0] * 8, 2.0),
        ([3.0, 4.0] * 4, [2.9, 4.5] * 4, 1.0),  # a busy one, where the shortest time is an accident
    ],
)
def test_libraries_differ_where_one_is_faster_most_of_the_time(
    monkeypatch: pytest.MonkeyPatch, mkl: list[float], other: list[float], faster: float
) -> None:
    turns = {"mkl": iter(mkl), "other": iter(other)}
    monkeypatch.setattr(model, "_multipliers", {name: lambda name=name: lambda *_: name for name in turns})
    monkeypatch.setattr(model, "least_seconds", lambda call, seconds, clock: next(turns[call.func()]))
    measured = model._products(1)
    assert measured["other"] / measured["mkl"] == pytest.approx(faster)


def test_another_machine_has_typical_rates() -> None:
    assert rates() == typical(Limits(2))
    with assume(TWO):
        assert rates() is TWO


def test_seconds_of_loops() -> None:
    """Memory and arithmetic in turn; cores share what is outside of their own caches."""
    assert TWO.seconds(1e6, 0) == 1e6 / 1e11
    assert TWO.seconds(0, 1e6) == pytest.approx(1e-5) and TWO.seconds(0, 1e6, threads=2) == pytest.approx(5e-6)
    assert TWO.seconds(1e6, 1e6) == pytest.approx(1e-5 + 1e-5)
    assert TWO.seconds(1e8, 0, threads=2) == 1e8 / 15e9
    assert TWO.seconds(5e7, 0, beside=5e7) == 5e7 / 7.5e9 > TWO.seconds(5e7, 0)


def test_a_kernel_starts_threads_where_its_schedule_says_so() -> None:
    alone, shared = Work(1e6, 1e6), Work(1e6, 1e6, threads=2)
    assert alone.seconds(TWO) == pytest.approx(1e-8 + 2e-5)
    assert shared.seconds(TWO) == pytest.approx(1e-8 + 1e-6 + 1e-5)


def graph_of(*shapes: tuple[int, ...]) -> Graph:
    graph = Graph("test")
    for shape in shapes:
        x = graph.add_input("x", shape, dace.float32)
        graph.add_output(Builder(graph).elementwise(lambda v: sympy.tanh(v), x))
    Runner(recipes.get("cpu"), "structure").run(graph, levels=("local", "hardware"))
    return graph


def test_works_of_kernels() -> None:
    graph = graph_of((512, 512), (16,))
    times = KernelTimes(graph, machine=TWO)
    large, small = (times.work(k) for k in sorted(graph.kernels(), key=lambda k: -times.work(k).bytes))
    assert (large.bytes, large.operations, large.threads) == (2 * 4 * 512 * 512, 20 * 512 * 512, 2)
    assert (small.bytes, small.threads) == (128, 1)


def test_branches_are_dealt_in_blocks_of_about_equal_time() -> None:
    times = KernelTimes(graph_of((8,)), machine=replace(TWO, region=0.0))
    works = [Work(0, 4e6), Work(0, 2e6), Work(0, 2e6)]
    deal = times.side_by_side(works, [100, 100, 100], blocks=4)
    assert (deal.order, deal.blocks) == ((0, 1, 2), (4, 2, 2)) and deal.seconds == pytest.approx(4e-5 + 1e-8)
    assert times.gain(works, deal) == pytest.approx(8e-5 - 4e-5 + 2e-8)
    whole = times.side_by_side(works, [1, 1, 1], blocks=4)
    assert whole.blocks == (1, 1, 1) and whole.seconds == pytest.approx(4e-5 + 1e-8), "the small ones have one thread"
    assert whole.order == (2, 1, 0)


def test_small_kernels_gain_nothing_from_a_region_that_takes_longer() -> None:
    times = KernelTimes(graph_of((8,)), machine=TWO)
    works = [Work(0, 5e4)] * 3
    assert times.gain(works, times.side_by_side(works, [9, 9, 9])) < 0


def test_what_fusion_may_save_at_most() -> None:
    """Nothing where no kernel reads what another one writes and one of them starts threads."""
    with assume(TWO):
        alone = ProgramTime.of(Program.of(graph_of((512, 512))))
        beside = ProgramTime.of(Program.of(graph_of((512, 512), (300, 300))))
    assert alone.fusible == 0 and alone.total == alone.kernels
    assert beside.fusible == TWO.region


@pytest.mark.parametrize("read_by_a_product", [False, True])
def test_what_a_call_keeps_apart_is_not_to_save(read_by_a_product: bool) -> None:
    """The last kernel reads what the first one writes: it cannot be one with it if it needs a product of that, too."""
    graph = Graph("test")
    b, x = Builder(graph), graph.add_input("x", (512, 512), dace.float32)
    head = b.elementwise(sympy.tanh, x)
    other = b.matmul(head, x) if read_by_a_product else b.elementwise(sympy.exp, x)
    graph.add_output(b.elementwise(lambda p, q: p + q, head, other))
    with assume(TWO):
        saved = ProgramTime.of(Program.of(graph)).fusible
        once = TWO.seconds(2 * 512 * 512 * 4, 0, threads=TWO.cores)
    assert saved == pytest.approx(0 if read_by_a_product else 2 * once)


@pytest.mark.parametrize(("edge", "again"), [(16, False), (512, True)])
def test_what_waits_for_a_sum_over_more_than_a_cache_is_read_again(edge: int, again: bool) -> None:
    """One kernel writes an array and its sums, another needs both: fusion saves nothing where the first part of a sum
    has left the cache when the sum is known."""
    graph = Graph("test")
    b, x = Builder(graph), graph.add_input("x", (4, edge, edge, 32), dace.float32)
    head = graph.add_array("head", (4, edge, edge, 32), dace.float32)
    total = graph.add_array("total", (32,), dace.float32)
    n, h, w, c = (Kernel.param(k) for k in range(4))
    stages = [
        Stage(
            (n, h, w, c),
            {"x": Access(x, (n, h, w, c))},
            {"out": Access(out, index, wcr)},
            (Assignment(sympy.Symbol("out"), value, dace.float32),),
        )
        for out, index, wcr, value in (
            (head, (n, h, w, c), None, sympy.tanh(sympy.Symbol("x"))),
            (total, (c,), "sum", sympy.Symbol("x")),
        )
    ]
    graph.add_kernel(Kernel("both", {n: 4, h: edge, w: edge, c: 32}, stages, outer=(c,)))
    graph.add_output(b.elementwise(lambda p, q: p - q, head, total))
    with assume(TWO):
        saved = ProgramTime.of(Program.of(graph)).fusible
        once = TWO.seconds(2 * graph.size(head) * 4, 0, threads=TWO.cores)
    assert (saved < once) if again else (saved >= once)


def test_library_calls_have_their_roofline() -> None:
    graph = Graph("test")
    x, w = graph.add_input("x", (64, 64), dace.float32), graph.add_input("w", (64, 64), dace.float32)
    graph.add_output(Builder(graph).matmul(x, w))
    (seconds,) = by_node(graph, machine=TWO).values()
    assert seconds == pytest.approx(1e-8 + 2 * 64**3 / 1e11)
