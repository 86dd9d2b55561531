"""Memory stitching: normalizations and softmax in one kernel, and why others stay apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy

from daceopt import ops
from daceopt.autodiff import differentiate
from daceopt.codegen.target import get as target
from daceopt.cost.limits import Limits, assume
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.schedule.schedule import Alloc, walk
from daceopt.transformations.partition.aggregation import Aggregation
from daceopt.transformations.partition.compound_opening import CompoundOpening
from daceopt.transformations.partition.memory_stitching import MemoryStitching
from tests.transformations.graphs import Net
from tests.transformations.lowered import apply, finish, misses, size_symbol, start

ROWS = (8, 32)


def partitioned(graph: Graph) -> Graph:
    """By both tables; what it computes is checked at each step."""
    apply(Aggregation(), graph)
    apply(MemoryStitching(), graph)
    return graph


def normalized(op: str, shape: tuple[Any, ...] = ROWS, *more: str, **attributes: Any) -> Graph:
    """A graph of element-wise code, the operator, and more of the former."""
    graph = Graph("test")
    names = {"x": graph.add_input("x", shape, _float()), **{n: graph.add_input(n, shape[-1:], _float()) for n in more}}
    made = [graph.add_array("t", shape, _float()) for _ in range(3)]
    graph.add_operator("Tanh", [names["x"]], [made[0]])
    graph.add_operator(op, [made[0], *(names[n] for n in more)], [made[1]], attributes)
    graph.add_operator("Exp", [made[1]], [made[2]])
    graph.add_output(made[2])
    for k, n in enumerate(shape):
        if not isinstance(n, int):
            graph.symbols[str(n)] = (names["x"], k)
    return graph


def _float() -> Any:
    import dace

    return dace.float32


OPERATORS: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("Softmax", (), {"axis": 1}),
    ("LogSoftmax", (), {"axis": 1}),
    ("LayerNormalization", ("scale", "shift"), {"axis": 1}),
    ("RMSNormalization", ("scale",), {"axis": 1}),
]


@pytest.mark.parametrize("rows", [8, "n"])
@pytest.mark.parametrize(("op", "more", "attributes"), OPERATORS, ids=[o[0] for o in OPERATORS])
def test_rows_are_one_kernel(op: str, more: tuple[str, ...], attributes: dict[str, Any], rows: Any) -> None:
    shape = (size_symbol() if rows == "n" else rows, 32)
    graph = normalized(op, shape, *more, **attributes)
    graph.source.opset[""] = 23
    CompoundOpening().run(graph)
    assert len(graph.kernels()) > 3
    partitioned(graph)
    left = [k.kernel.label for k in graph.kernels()]
    assert len(left) == 1 or all("shape" in label or label == "exp" for label in left[1:]), left


@pytest.mark.parametrize(("op", "more", "attributes"), OPERATORS, ids=[o[0] for o in OPERATORS])
def test_their_gradients(op: str, more: tuple[str, ...], attributes: dict[str, Any]) -> None:
    """Of the rows; sums over the rows for the parameters have another canonical form and are apart."""
    graph = normalized(op, ROWS, *more, **attributes)
    graph.source.opset[""] = 23
    ops.lower_all(graph, keep=ops.has_gradient)
    backward = differentiate(graph, graph.outputs, graph.inputs[:1]).backward
    backward.saved = []
    CompoundOpening().run(backward)
    many = len(backward.kernels())
    partitioned(backward)
    assert len(backward.kernels()) <= 2 < many


def test_batch_normalization_in_training_takes_two_passes() -> None:
    """The channels' sums, then both of them and the elements again: x is read by one kernel, in two loops."""
    graph, b, (x, scale) = start((4, 6, 8, 8), (1, 6, 1, 1))
    count = 4 * 8 * 8
    mean = b.reduce("sum", lambda v: v / count, x, axes=[0, 2, 3], keepdims=True)
    square = b.reduce("sum", lambda v: v * v / count, x, axes=[0, 2, 3], keepdims=True)
    y = b.elementwise(lambda v, m, s, g: g * (v - m) / sympy.sqrt(s - m * m + 1), x, mean, square, scale)
    partitioned(finish(graph, y))
    (kernel,) = (k.kernel for k in graph.kernels())
    assert len(kernel.stages) == 3 and len(kernel.outer) == 1


def test_log_softmax_and_loss() -> None:
    net = Net(x=ROWS, target=ROWS)
    scores = net.op("LogSoftmax", net.x, axis=1)
    graph = net.done(net.op("ReduceSum", net.op("Mul", scores, net.target), net.const([1], "int64"), shape=(8, 1)))
    CompoundOpening().run(graph)
    partitioned(graph)
    assert len(graph.kernels()) == 1


def test_scopes_stand_in_the_schedule() -> None:
    graph, b, (x,) = start(ROWS)
    total = b.reduce("sum", None, x, axes=[1], keepdims=True)
    partitioned(finish(graph, b.elementwise(lambda v, s: v / s, x, total)))
    (tree,) = (n.tree for n in graph.kernels())
    assert [(n.array, n.scope) for n, _ in walk(tree) if isinstance(n, Alloc)] == [(f"{total}_l", "thread")]


# ---------------------------------------------------------------- what stays apart


def rows_then(build: Callable[[Any, str, str], str], shape: tuple[int, ...] = ROWS) -> Graph:
    """A sum of rows, and what ``build`` makes of the array and the sums."""
    graph, b, (x,) = start(shape)
    total = b.reduce("sum", None, x, axes=[1], keepdims=True)
    return finish(graph, build(b, x, total))


def test_two_forms() -> None:
    graph = rows_then(lambda b, x, s: b.reduce("sum", lambda v, t: v / t, x, s, axes=[0]))
    text = misses(apply(MemoryStitching(), graph))
    assert "canonical forms differ: y-reduce: for x < 8: for y < 32, and x-reduce: for y < 8: for x < 32" in text


def test_what_does_not_fit_stays_in_memory() -> None:
    def build(b: Any, x: str, total: str) -> str:
        e = b.elementwise(lambda v, t: sympy.exp(v - t), x, total)
        return str(b.elementwise(lambda v, t: v / t, e, b.reduce("sum", None, e, axes=[1], keepdims=True)))

    graph = rows_then(build)
    apply(Aggregation(), graph)
    small = apply(MemoryStitching(capacity=100), graph.copy())
    assert any("stays in memory: 132 bytes for each iteration are more than 100" in m for m in small.near_misses)
    with assume(Limits(cores=2, l1=8)):
        assert any("are more than 64" in m for m in apply(MemoryStitching(), graph.copy()).near_misses)
    assert apply(MemoryStitching(), graph).near_misses == []
    assert len(graph.kernels()) == 1


def test_an_accelerator_has_what_a_block_shares() -> None:
    graph = rows_then(lambda b, x, s: b.elementwise(lambda v, t: sympy.exp(v - t), x, s))
    graph.options = graph.options.__class__(**{**vars(graph.options), "target": target("cuda").name})
    assert len(apply(MemoryStitching(), graph).sites) == 1


def test_a_reduction_of_everything_has_no_loop_to_share() -> None:
    graph, b, (x,) = start(ROWS)
    total = b.reduce("sum", None, x, axes=[0, 1], keepdims=True)
    outcome = apply(MemoryStitching(), finish(graph, b.elementwise(lambda v, s: v / s, x, total)))
    assert "no common parallel parameter" in misses(outcome)


def test_only_reductions_begin() -> None:
    graph, b, (x,) = start(ROWS)
    outcome = apply(MemoryStitching(), finish(graph, b.elementwise(sympy.exp, b.elementwise(sympy.tanh, x))))
    assert outcome.sites == [] and outcome.near_misses == []


def test_rules_are_those_of_aggregation() -> None:
    graph = rows_then(lambda b, x, s: b.elementwise(lambda v, t: v / t, x, s))
    assert apply(MemoryStitching(rules="8"), graph.copy()).sites == []
    assert apply(MemoryStitching(rules="7"), graph).sites == ["k + k: reduction by 7"]
    with pytest.raises(DaceoptError, match="no aggregation rule or table is called '77'"):
        MemoryStitching(rules="77")
