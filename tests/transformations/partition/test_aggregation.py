"""Aggregation: what each rule makes one kernel, what stays apart and why, and rules of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sympy

from daceopt import ops
from daceopt.ir.fusion import fusion_profit
from daceopt.ir.fusion.fusion_plan import FusionPlan
from daceopt.ir.fusion.micro_graph import type_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar
from daceopt.ops.core.registry import lowering
from daceopt.passes.aggregation_rules import TABLE_1, RuleSet
from daceopt.transformations.partition.aggregation import Aggregation
from tests.registered import restored
from tests.transformations.graphs import Net
from tests.transformations.lowered import F, apply, finish, misses, start

SQUARE, ROW = (4, 6), (6,)
Build = Callable[[Any, list[str]], str]


def built(shapes: list[tuple], build: Build) -> Graph:
    graph, b, names = start(*shapes)
    return finish(graph, build(b, names))


def add(b: Any, *arrays: str) -> str:
    return str(b.elementwise(lambda u, v: u + v, *arrays))


def tanh(b: Any, x: str) -> str:
    return str(b.elementwise(sympy.tanh, x))


CASES: list[tuple[str, list[tuple], Build]] = [
    ("1: element-wise", [SQUARE], lambda b, x: tanh(b, tanh(b, x[0]))),
    ("2: broadcast", [SQUARE, ROW], lambda b, x: tanh(b, add(b, *x))),
    ("3: broadcast", [SQUARE, ROW, ROW], lambda b, x: add(b, add(b, x[0], x[1]), x[2])),
    ("4: reduction", [SQUARE], lambda b, x: b.reduce("sum", None, tanh(b, x[0]), axes=[1])),
    ("5: reduction", [SQUARE, ROW], lambda b, x: b.reduce("sum", None, add(b, *x), axes=[1])),
    ("6-transpose: transpose", [SQUARE], lambda b, x: b.copy(b.transpose(tanh(b, x[0]), [1, 0]))),
    ("6-matmul: matmul", [SQUARE, (6, 4), (4, 4)], lambda b, x: add(b, b.matmul(x[0], x[1]), x[2])),
    ("9: broadcast", [SQUARE, ROW], lambda b, x: add(b, tanh(b, x[0]), x[1])),
    ("10: transpose", [SQUARE], lambda b, x: tanh(b, b.copy(b.transpose(x[0], [1, 0])))),
    ("13: matmul", [SQUARE, (6, 4), (4,)], lambda b, x: add(b, b.matmul(x[0], x[1]), x[2])),
    ("11: opaque", [SQUARE], lambda b, x: tanh(b, b.reshape(tanh(b, x[0]), (2, 12)))),
]


@pytest.mark.parametrize(("made", "shapes", "build"), CASES, ids=[case[0].partition(":")[0] for case in CASES])
def test_each_rule(made: str, shapes: list[tuple], build: Build) -> None:
    """One group by this rule, of the type that the dataflow of what it becomes has; nothing without the rule."""
    name, _, kind = made.partition(": ")
    graph = built(shapes, build)
    without = Aggregation(rules=RuleSet.of("table-1; complementary").without(name, "11"))
    assert name == "11" or apply(without, graph.copy()).sites == []
    (site,) = apply(Aggregation(rules=name), graph).sites
    assert site.endswith(f": {kind} by {name}")
    assert len(graph.nodes()) == 1
    assert name == "11" or type_of(graph, graph.nodes()[0]) == kind


def test_siblings_read_their_operand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_profit, "SMALL", 0)
    graph, b, (x,) = start(SQUARE)
    finish(graph, b.reduce("sum", None, x, axes=[1]), b.reduce("max", None, x, axes=[1]), tanh(b, x))
    (site,) = apply(Aggregation(rules="12"), graph).sites
    assert site == "k + k + k: opaque by 12"
    assert len(graph.kernels()) == 1


def test_small_operands_make_no_siblings() -> None:
    graph, b, (x,) = start(SQUARE)
    assert apply(Aggregation(rules="12"), finish(graph, tanh(b, x), b.elementwise(sympy.exp, x))).sites == []


def test_rules_apply_in_their_order() -> None:
    """Whoever comes first takes the element-wise node in the middle."""

    def groups(rules: str) -> list[str]:
        graph, b, (x, y) = start(SQUARE, SQUARE)
        middle = tanh(b, x)
        finish(graph, b.reduce("sum", None, middle, axes=[1]), b.reduce("sum", None, add(b, middle, y), axes=[1]))
        return apply(Aggregation(rules=rules), graph).sites

    assert groups("1; 4") == ["k + k + k: reduction by 1, 4"]
    assert groups("4; 1") == ["k + k: reduction by 4", "k + k: reduction by 4"]


# ---------------------------------------------------------------- what stays apart


@pytest.mark.parametrize(
    ("rules", "shapes", "build", "reason"),
    [
        ("1", [(4, 4)], lambda b, x: add(b, (t := tanh(b, x[0])), b.transpose(t, [1, 0])), None),
        ("9", [ROW, SQUARE], lambda b, x: add(b, x[1], tanh(b, x[0])), "runs over fewer parameters"),
        ("6-matmul", [SQUARE, (6, 4)], lambda b, x: b.matmul(tanh(b, x[0]), x[1]), "no library computes an operand"),
        ("6-matmul", [SQUARE, (6, 4)], lambda b, x: tanh(b, b.matmul(*x)), "the reader is not a sum"),
        (
            "1; 6-matmul",
            [SQUARE, (6, 4), (4, 4)],
            lambda b, x: add(b, tanh(b, (p := add(b, b.matmul(x[0], x[1]), x[2]))), b.elementwise(sympy.exp, p)),
            "the reader is not a sum",
        ),
        ("11", [(4, 4)], lambda b, x: add(b, (t := tanh(b, x[0])), b.transpose(t, [1, 0])), "read at other elements"),
        ("11", [SQUARE], lambda b, x: tanh(b, b.slice(tanh(b, x[0]), [1], [3], [1], [0])), "walked differently"),
    ],
)  # fmt: skip
def test_near_misses(rules: str, shapes: list[tuple], build: Build, reason: str | None) -> None:
    graph = built(shapes, build)
    outcome = apply(Aggregation(rules=rules), graph)
    if reason is None:
        assert outcome.sites == [] and outcome.near_misses == []
    else:
        assert any(reason in miss and " allows " in miss for miss in outcome.near_misses)


def test_no_rule_closes_a_cycle() -> None:
    """What lies between is no kernel: its neighbours would have to run both before and after it."""
    graph, b, (x, w) = start((4, 4), (4, 4))
    top = tanh(b, x)
    outcome = apply(Aggregation(rules="1"), finish(graph, add(b, top, b.matmul(top, w))))
    assert "what lies between would have to run both before and after: k -> k -> k" in misses(outcome)


def test_a_cycle_that_another_merge_opens() -> None:
    """tanh and add wait until exp, which lies between, has joined one of them."""
    graph, b, (x,) = start(SQUARE)
    top = tanh(b, x)
    (site,) = apply(Aggregation(rules="1"), finish(graph, add(b, top, b.elementwise(sympy.exp, top)))).sites
    assert site.startswith("k + k + k: ")


def test_a_product_that_somebody_else_reads_keeps_its_result() -> None:
    graph, b, (x, w, v) = start(SQUARE, (6, 4), (4, 4))
    product = b.matmul(x, w)
    outcome = apply(Aggregation(), finish(graph, product, add(b, product, v)))
    assert "somebody else reads the product" in misses(outcome)


def test_an_epilogue_of_several_micro_graphs() -> None:
    """Two sums become one kernel first, of which the library node takes the residual and the activation."""
    graph, b, (x, w, other) = start(SQUARE, (6, 4), (4, 4))
    both = b.elementwise(lambda v: scalar.maximum(v, 0), add(b, b.matmul(x, w), other))
    (site,) = apply(Aggregation(), finish(graph, both)).sites
    assert site == "k + k + k: matmul by 1, 6-matmul"
    (node,) = graph.nodes()
    assert isinstance(node, Contraction) and graph.reads(node)["C"] == other and node.activation == "relu"


def test_statements_are_bounded() -> None:
    graph, b, (x,) = start(SQUARE)
    for _ in range(10):
        x = tanh(b, x)
    outcome = apply(Aggregation(max_stages=4), finish(graph, x))
    assert [site.count("k") for site in outcome.sites] == [4, 4, 2]


def test_nothing_to_do() -> None:
    graph, b, (x, w) = start(SQUARE, (6, 4))
    assert apply(Aggregation(), finish(graph, b.matmul(x, w))).sites == []
    empty = Graph("empty")
    empty.add_output(empty.add_input("x", SQUARE, F))
    assert Aggregation().run(empty).sites == []


# ---------------------------------------------------------------- users


def test_a_rule_of_the_user_in_one_line() -> None:
    """What a gather yields goes on element by element: no rule of the tables says so before the last."""
    graph, b, (x,) = start(SQUARE)
    index = graph.add_constant("rows", np.array([3, 0, 1]))
    out = graph.add_array("out", (3, 6), F)
    reads = {"x": (x, lambda i, j: (None, None)), "r": (index, lambda i, j: (i,))}
    b.map((3, 6), reads, {"out": (out, lambda i, j: (i, j))}, lambda i, x, r: scalar.load(x, r, i[1]))
    finish(graph, tanh(b, out))
    assert apply(Aggregation(), graph.copy()).sites == []
    step = replace(Aggregation(), rules=TABLE_1 + "mine: opaque -> element-wise = opaque")
    assert apply(step, graph).sites == ["k + k: opaque by mine"]


def test_a_rule_less() -> None:
    graph = built(CASES[3][1], CASES[3][2])
    assert apply(Aggregation(rules=TABLE_1.without("4")), graph).sites == []


@pytest.fixture
def _unseen() -> Iterator[None]:
    """An operator that nobody knows: each element of a row against the row's largest."""
    with restored():

        @lowering("Unseen", domain="test.partition")
        def unseen(b: Any, node: Any, inputs: list[str], outputs: list[str]) -> None:
            top = b.reduce("max", lambda v: v * v, inputs[0], axes=[1], keepdims=True)
            b.elementwise(lambda v, t: v / t, inputs[0], top, out=outputs[0])

        yield


@pytest.mark.usefixtures("_unseen")
def test_operators_that_nobody_has_seen() -> None:
    net = Net(x=SQUARE)
    first = net.op("Tanh", net.x)
    out = net.graph.add_array("unseen", SQUARE, F)
    net.graph.add_operator("Unseen", [first], [out], domain="test.partition")
    graph = net.done(net.op("Exp", out))
    ops.lower_all(graph)
    assert [site.partition(":")[2] for site in apply(Aggregation(), graph).sites] == [
        " reduction by 4",
        " broadcast by 2",
    ]


# ---------------------------------------------------------------- size


def test_work_grows_with_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the nodes, about twice the merges that are tried: chains, and one array that all read."""
    tried: list[int] = []
    attempt = FusionPlan.attempt

    def counted(self: FusionPlan, *arguments: Any) -> str | None:
        tried[-1] += 1
        return attempt(self, *arguments)

    monkeypatch.setattr(FusionPlan, "attempt", counted)
    for count in (60, 120):
        tried.append(0)
        graph, b, (x, v) = start(SQUARE, ROW)
        for k in range(count):
            x = add(b, tanh(b, x), v) if k % 3 else b.reduce("max", None, x, axes=[0], keepdims=True)
        Aggregation(max_stages=8).run(finish(graph, x))
    assert tried[1] <= 2.3 * tried[0]
