"""What loops do, counted by hand; where arrays lie; and what a fixed machine makes of both."""

from __future__ import annotations

from dataclasses import replace

import dace
import pytest
import sympy

from daceopt import recipes
from daceopt.cost import kernel_class
from daceopt.cost.kernel_class import ModelError
from daceopt.cost.kernel_time import KernelTimes
from daceopt.cost.rates import Rates
from daceopt.cost.reuse_distance import ReuseDistances
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.tasklet import Assignment
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.runner import Runner
from daceopt.store import values
from daceopt.store.cache import Cache
from tests.cost.test_rates import TWO

MB = 1 << 20


def scheduled(graph: Graph) -> Graph:
    Runner(recipes.get("cpu"), "structure").run(graph, levels=("local", "hardware"))
    return graph


def loops_of(graph: Graph, machine: Rates = TWO) -> dict[str, float]:
    (node,) = scheduled(graph).kernels()
    return dict(KernelTimes(graph, machine=machine).loops(node))


def of_values(*functions: object, shape: tuple[int, ...] = (64, 256), dtype: object = dace.float32) -> Graph:
    graph = Graph("test")
    x = graph.add_input("x", shape, dtype)
    for function in functions:
        graph.add_output(Builder(graph).elementwise(function, x))
    return graph


def test_vector_loops_load_store_and_compute() -> None:
    n = 64 * 256
    found = loops_of(of_values(lambda v: sympy.exp(v) * 2 + 1))
    assert found == {"exp": n, "operation": 2 * n, "entry": 1, "byte": 8 * n}


def test_what_is_computed_twice_counts_once() -> None:
    """By whatever name, as the printer has it."""
    n, (x, first, second, out) = 64 * 256, sympy.symbols("x first second out")
    graph, i = Graph("test"), Kernel.param(0)
    a, b = graph.add_input("a", (n,), dace.float32), graph.add_array("b", (n,), dace.float32)
    values = (first, sympy.erf(x) + 1), (second, sympy.erf(x) + 1), (out, first * second)
    assignments = tuple(Assignment(name, value, dace.float32) for name, value in values)
    stage = Stage((i,), {"x": Access(a, (i,))}, {"out": Access(b, (i,))}, assignments)
    graph.add_kernel(Kernel("twice", {i: n}, [stage]))
    graph.add_output(b)
    found = loops_of(graph)
    assert found["erf"] == n and found["operation"] <= 2 * n and found["byte"] == 8 * n


def test_doubles_take_twice_as_many_vectors() -> None:
    n = 64 * 256
    found = loops_of(of_values(lambda v: sympy.exp(v), dtype=dace.float64))
    assert found["exp"] == 2 * n and found["byte"] == 16 * n


@pytest.mark.parametrize(("value", "units"), [(lambda v: 1 / v, 1), (lambda v: 1 / sympy.sqrt(v), 2)])
def test_roots_and_quotients_are_divisions(value: object, units: int) -> None:
    assert loops_of(of_values(value))["division"] == units * 64 * 256


def test_strides_are_walked_element_by_element() -> None:
    graph = Graph("test")
    x = graph.add_input("x", (64, 256), dace.float32)
    b = Builder(graph)
    graph.add_output(
        b.elementwise(lambda p, q: p + q, x, b.transpose(graph.add_input("y", (256, 64), dace.float32), [1, 0]))
    )
    found = loops_of(graph)
    assert found["strided"] == 64 * 256 and found["byte"] == 2 * 4 * 64 * 256


@pytest.mark.parametrize(("lanes", "starts", "loads"), [(16, 4, 4 * 16), (48, 4 * 100, 4 * 100 * 48)])
def test_a_loop_no_longer_than_a_line_is_part_of_the_one_around_it(lanes: int, starts: int, loads: int) -> None:
    """It does not start, and what it reads of the same place again stays in registers: a factor of each channel, of
    images in blocks of sixteen."""
    graph, (block, place, lane) = Graph("test"), (Kernel.param(k) for k in range(3))
    x, out = (add("x", (4, 100, lanes), dace.float32) for add in (graph.add_input, graph.add_array))
    factor = graph.add_input("factor", (4, lanes), dace.float32)
    index = (block, place, lane)
    reads = {"x": Access(x, index), "factor": Access(factor, (block, lane))}
    product = Assignment(sympy.Symbol("out"), sympy.Symbol("x") * sympy.Symbol("factor"), dace.float32)
    stage = Stage(index, reads, {"out": Access(out, index)}, (product,))
    graph.add_kernel(Kernel("scaled", {block: 4, place: 100, lane: lanes}, [stage]))
    graph.add_output(out)
    found = loops_of(graph)
    assert found["entry"] == starts
    assert found["byte"] == 4 * (2 * 4 * 100 * lanes + loads)


@pytest.mark.parametrize(("axis", "unit"), [(1, "lanes"), (0, "wide")])
def test_sums_along_vectors_and_beside_them(axis: int, unit: str) -> None:
    graph = Graph("test")
    x = graph.add_input("x", (512, 48), dace.float32)
    graph.add_output(Builder(graph).reduce("sum", None, x, axes=[axis]))
    found = loops_of(graph)
    assert found[unit] == (512 if unit == "lanes" else 64 * 48) and found["byte"] >= 4 * 512 * 48


def test_a_read_reaches_back_to_its_writer_and_past_the_program_else() -> None:
    graph = Graph("test")
    b, x = Builder(graph), graph.add_input("x", (512, 512), dace.float32)
    first = b.elementwise(sympy.tanh, x)
    second = b.matmul(first, graph.add_input("w", (512, 512), dace.float32))
    graph.add_output(b.elementwise(lambda p, q: p + q, second, first))
    nodes = graph.nodes()
    moved = dict(zip(nodes, (2.0 * MB, 3.0 * MB, 3.0 * MB)))
    parts = [ReuseDistances.of(graph, float, moved).parts[n] for n in nodes]
    whole = 5.0 * MB
    assert parts[0] == ((MB, whole), (MB, 2 * MB)), "an input of the run before, and scratch memory"
    assert parts[1] == ((MB, MB), (MB, whole), (MB, 3 * MB))
    assert sorted(parts[2]) == sorted(((MB, MB), (MB, MB), (MB, whole))), "the product has touched both"


def test_rates_between_working_sets() -> None:
    assert TWO.moving([(1e6, 1e6)]) == pytest.approx(1e6 / 1e11)
    between = TWO.moving([(1e6, 2.0**25)])  # half way, by logarithms, from 2 ** 20 to 2 ** 30
    assert between == pytest.approx(1e6 / (1e11 * 10**-0.5))
    assert TWO.moving([(1e6, 1e12)], threads=2) == pytest.approx(1e6 / 15e9), "all cores share the way to memory"


def test_arithmetic_hides_behind_loads_and_additions_behind_memory() -> None:
    machine = replace(
        TWO, loops=tuple({**dict(TWO.loops), "byte": 1e-12, "operation": 1e-12, "exp": 1e-10, "wide": 1e-10}.items())
    )
    assert machine.computing({"byte": 1e6, "operation": 2e6}) == pytest.approx(2e-6)
    assert machine.computing({"byte": 1e6, "exp": 1e4}) == pytest.approx(2e-6)
    assert machine.running({"wide": 1e4}, [(1e6, 1e6)]) == pytest.approx(1e-5)
    assert machine.running({"wide": 2e5}, [(1e6, 1e6)], threads=2) == pytest.approx(1e-5)


def test_the_time_of_a_scheduled_kernel() -> None:
    graph = scheduled(of_values(lambda v: sympy.exp(v), shape=(512, 512)))
    (node,) = graph.kernels()
    times, n = KernelTimes(graph, machine=TWO), 512 * 512
    unit = dict(TWO.loops)
    core = 8 * n * unit["byte"] + n * unit["exp"] + unit["entry"]
    expected = unit["call"] + TWO.region + core / 2 + TWO.moving([(4 * n, 8 * n), (4 * n, 8 * n)], 2)
    assert times.seconds(node) == pytest.approx(expected)


def test_classes() -> None:
    of = kernel_class.kernel_class
    assert of({"byte": 1.0}, 2) == "streaming" and of({"byte": 1.0}, 1) == "short"
    assert of({"exp": 1.0, "wide": 1.0}, 2) == "sums" and of({"exp": 1.0}, 2) == "functions"
    assert of({"strided": 1.0, "wide": 1.0}, 2) == "strided" and of({"multiplication": 1.0}, 2) == "micro-kernels"


def test_errors_by_number_and_by_time(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    error = ModelError.of([(2e-6, 1e-6), (3e-6, 3e-6)])
    assert error == ModelError(2, pytest.approx(2**0.5), 0.5, pytest.approx(2**0.25), 0.75)
    store = Cache(tmp_path / "cache")
    monkeypatch.setattr(values, "default_cache", lambda: store)
    assert kernel_class.last_errors() is None
    kernel_class.keep({"sums": error})
    kernel_class.keep({"streaming": error})
    assert kernel_class.last_errors() == {"streaming": error}
