"""The arena plan: no two live buffers overlap, dead memory is used again, saved blocks agree."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import dace
import sympy

from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.codegen.memory_plan import _align, _larger, aligned_bytes, least_arena, plan, residents
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.symbols import size

F = dace.float32


def _chain(length: int) -> tuple[Graph, list[str]]:
    graph = Graph("chain")
    b = Builder(graph)
    names = [graph.add_input("x", (100, 100), F)]
    for _ in range(length):
        names.append(b.elementwise(lambda v: sympy.tanh(v), names[-1]))
    graph.add_output(names[-1])
    return graph, names


def _check_no_overlap(graph: Graph) -> None:
    result = plan(graph)
    uses: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes()):
        for name in (*graph.inputs_of(node), *graph.outputs_of(node)):
            uses.setdefault(graph.root(name)[0], []).append(position)
    live = {n: (min(p), max(p)) for n, p in uses.items() if n in result.arena}
    for a, (begin, end) in live.items():
        for other, (first, last) in live.items():
            if a < other and begin < last and first < end:
                start, stop = result.arena[a], result.arena[a] + aligned_bytes(graph, a)
                assert stop <= result.arena[other] or result.arena[other] + aligned_bytes(graph, other) <= start


def test_a_chain_runs_in_place() -> None:
    graph, _ = _chain(10)
    result = plan(graph)
    assert result.arena_bytes == 40000
    assert set(result.arena.values()) == {0}
    assert plan(graph, reuse=False).arena_bytes == 9 * 40000


def test_buffers_that_live_together_do_not_overlap() -> None:
    graph = Graph("tree")
    b = Builder(graph)
    x = graph.add_input("x", (64, 30), F)
    parts = [b.elementwise(lambda v, k=k: v + k, x) for k in range(4)]
    turned = b.transpose(parts[0], (1, 0))
    total = b.elementwise(lambda a, c: a + c, b.copy(turned), b.copy(b.transpose(parts[1], (1, 0))))
    rows = b.reduce("sum", None, parts[2], axes=(1,))
    out = b.elementwise(lambda a, c, d: a * c + d, b.transpose(total, (1, 0)), parts[3], b.reshape(rows, (64, 1)))
    graph.add_output(out)
    _check_no_overlap(graph)


def test_a_transposed_read_is_not_written_in_place() -> None:
    graph = Graph("turn")
    b = Builder(graph)
    x = graph.add_input("x", (40, 40), F)
    y = b.elementwise(lambda v: v + 1, x)
    z = b.copy(b.transpose(y, (1, 0)))
    graph.add_output(b.elementwise(lambda v: v * 2, z))
    result = plan(graph)
    assert result.arena[y] != result.arena[z]


def test_saved_arrays_are_laid_out_by_their_order() -> None:
    graph, names = _chain(4)
    result = plan(graph, names[1:3])
    assert result.saved == {names[1]: 0, names[2]: 40000}
    assert result.saved_bytes == 80000
    assert not set(result.saved) & set(result.arena)


def test_symbolic_sizes() -> None:
    n = dace.symbolic.symbol("n", dace.int64)
    graph = Graph("symbolic")
    b = Builder(graph)
    x = graph.add_input("x", (n, 3), F)
    y = b.elementwise(lambda v: v + 1, x)
    z = b.elementwise(lambda v: scalar.gt(v, 0), y)
    graph.add_output(b.elementwise(lambda c, v: scalar.select(c, v, 0), z, x))
    result = plan(graph)
    values = dict.fromkeys(result.arena_bytes.free_symbols, 7)
    assert result.arena_bytes.subs(values) == 128 + 64


def test_a_small_buffer_that_lives_long_takes_no_large_place() -> None:
    graph = Graph("rows")
    b = Builder(graph)
    values, sums = [graph.add_input("x", (64, 64), F)], []
    for _ in range(6):
        values.append(b.elementwise(lambda v: sympy.tanh(v), b.transpose(values[-1], (1, 0))))
        sums.append(b.reduce("sum", None, values[-1], axes=(0, 1)))
    total = b.elementwise(lambda *v: sympy.Add(*v), *sums)
    graph.add_output(b.elementwise(lambda u, v: u + v, values[-1], total))
    assert plan(graph).arena_bytes <= 2 * 4 * 64 * 64 + 7 * 64
    _check_no_overlap(graph)


def test_residents_take_no_byte_twice() -> None:
    graph, _ = _chain(10)
    found = residents(graph)
    assert len(found) == 9 and {r.bytes for r in found} == {40000}
    for position in range(len(graph.nodes())):
        assert sum(r.first <= position <= r.last for r in found) <= 1  # each is written over the one before


def _two_results(reads_ahead: bool = False) -> tuple[Graph, str, str]:
    """A kernel that writes an array like the one it reads for the last time, and its sum; the array and its result."""
    graph = Graph("two")
    b = Builder(graph)
    x = graph.add_input("x", (64, 32), F)
    y = b.elementwise(lambda v: sympy.tanh(v), x)
    z, total = graph.add_array("z", (64, 32), F), graph.add_array("total", (32,), F)
    reads = {"y": (y, (lambda i, j: (63 - i, j)) if reads_ahead else (lambda i, j: (i, j)))}
    writes = {"z": (z, lambda i, j: (i, j)), "s": (total, lambda i, j: (j,), "sum")}
    b.map((64, 32), reads, writes, lambda i, y: {"z": 2 * y, "s": 2 * y * y})
    graph.add_output(b.elementwise(lambda v: v + 1, b.transpose(z, (1, 0))))
    graph.add_output(total)
    return graph, y, z


def test_a_kernel_of_two_results_writes_over_what_it_reads_and_the_compiler_is_told() -> None:
    graph, y, z = _two_results()
    found = plan(graph)
    assert found.over == {z: y} and found.arena[z] == found.arena[y] and found.arena_bytes == 64 * 32 * 4
    (entry,) = (e for e in graph.kernels() if len(graph.outputs_of(e)) == 2)
    apart = kernel_source(graph, entry.kernel).text
    graph.overwrites = found.over
    text = kernel_source(graph, entry.kernel).text
    assert apart.count("__restrict__") == 3 and text.count("__restrict__") == 1  # the sums stand alone


def test_what_is_read_elsewhere_is_not_written_over() -> None:
    graph, _, _ = _two_results(reads_ahead=True)
    assert plan(graph).over == {}


def test_where_nobody_tells_the_compiler_kernels_of_two_results_write_elsewhere() -> None:
    graph, _, _ = _two_results()
    graph.options = replace(graph.options, target="cuda")
    assert plan(graph).over == {}


def test_the_least_arena_is_a_bound() -> None:
    graph, _ = _chain(6)
    assert least_arena(graph, (), graph.nodes()) == plan(graph, lending=True).arena_bytes
    n = dace.symbolic.symbol("n", dace.int64)
    graph = Graph("open")
    x = graph.add_input("x", (n,), F)
    graph.symbols["n"] = (x, 0)
    b = Builder(graph)
    graph.add_output(b.elementwise(lambda v: v + 1, b.elementwise(lambda v: sympy.tanh(v), x)))
    assert least_arena(graph, (), graph.nodes()) is None


def test_the_larger_of_many_open_sizes() -> None:
    """What is never less is kept alone; others stand beside each other, without SymPy's comparison of all pairs."""
    batch, width = size("s0"), size("s1")
    sizes = [_align(k * batch + extra, dace.float32) for k in range(1, 60) for extra in (0, 7)]
    assert reduce(_larger, sizes, 0) == sizes[-1]
    others = [_align(k * batch + (60 - k) * width, dace.float32) for k in range(1, 24)]
    found = reduce(_larger, others, 0)
    for values in ({batch: 1, width: 9}, {batch: 9, width: 1}, {batch: 0, width: 0}):
        assert found.subs(values) == max(other.subs(values) for other in others)
