"""Rewrites as data: what a pattern takes, what its near misses say, what stands in its place; rules of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest

from daceopt import transformations
from daceopt.errors import DaceoptError, VerificationError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.passes.patterns import (
    HERE,
    Match,
    PatternRule,
    constant,
    either,
    maybe,
    op,
    pattern_rule,
    polynomial,
    product,
    scalar,
    scaled,
    then,
)
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from tests.registered import restored
from tests.transformations.graphs import Net, check, near_misses, op_types


def rule(pattern: Any, replacement: Any = None, **settings: Any) -> PatternRule:
    made = replacement or op("Identity", "x")
    return type("Planned", (PatternRule,), {"pattern": pattern, "replacement": made, **settings})()


TWO_SCALES = op("Mul", op("Mul", "x", scalar("a")), scalar("b"))


@pattern_rule(TWO_SCALES)
def scale_folding(m: Match) -> Any:
    """Multiply by one constant instead of two."""
    return op("Mul", "x", m["a"] * m["b"])


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("outer", [False, True])
def test_commutative_operands_in_either_order(inner: bool, outer: bool) -> None:
    net = Net(x=(2, 3))
    y = net.op("Mul", *(net.x, net.const(2.0))[:: -1 if inner else 1])
    y = net.op("Mul", *(y, net.const(3.0))[:: -1 if outer else 1])
    graph = net.done(y)
    assert scale_folding.kebab_name() == "scale-folding" and "one constant" in str(scale_folding.__doc__)
    outcome = check(scale_folding(), graph, ["Mul"])
    assert outcome.sites == ["Mul + Mul"]
    assert [v.tolist() for v in graph.constants.values()] == [6.0]


def test_operands_that_do_not_commute() -> None:
    net = Net(x=(2, 3))
    graph = net.done(net.op("Sub", net.const(1.0), net.op("Exp", net.x)))
    assert rule(op("Sub", op("Exp", "x"), 1.0)).run(graph).sites == []
    assert rule(op("Sub", 1.0, op("Exp", "x")), op("Neg", "x")).run(graph).sites == ["Sub + Exp"]


def test_a_constant_that_gives_the_result_its_rank_is_none_of_one_element() -> None:
    net = Net(x=(3,))
    y = net.op("Mul", net.op("Mul", net.x, net.const([[2.0]])), net.const(3.0))
    assert scale_folding().run(net.done(y)).sites == []


def expm1(net: Net, value: float = 1.0, **extra: str) -> str:
    return net.op("Sub", net.op("Exp", net.op("Neg", extra.get("of", net.x))), net.const(value))


DEEP = op("Sub", op("Exp", op("Neg", op("Abs", "x"))), 1.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda net: expm1(net, 2.0, of=net.op("Abs", net.x)), "is 2, expected 1 (operand 2 of Sub sub_6)"),
        (lambda net: expm1(net, of=net.op("Relu", net.x)), "expected Abs"),
        (lambda net: expm1(net), "x_1 is not made by Abs (operand 1 of Neg neg_2): it is an input, expected Abs"),
    ],
)
def test_near_misses_say_what_was_expected_and_found_and_where(make: Any, said: str) -> None:
    net = Net(x=(2, 3))
    graph = net.done(make(net))
    assert said in near_misses(rule(DEEP), graph)


def test_what_shares_little_with_a_pattern_is_no_near_miss() -> None:
    net = Net(x=(2, 3))
    assert near_misses(rule(DEEP), net.done(net.op("Sub", net.op("Exp", net.x), net.const(1.0)))) == ""
    net = Net(x=(2, 3), y=(2, 3))
    assert near_misses(rule(DEEP), net.done(net.op("Sub", net.x, net.y))) == ""


def test_two_pieces_that_differ_are_no_near_miss() -> None:
    net = Net(x=(2, 3))
    assert near_misses(rule(DEEP), net.done(expm1(net, 2.0))) == ""


def test_one_name_is_one_array() -> None:
    net = Net(x=(2, 3), y=(2, 3))
    product_of = op("Mul", op("Exp", "x"), op("Neg", op("Relu", "x")))
    graph = net.done(net.op("Mul", net.op("Exp", net.x), net.op("Neg", net.op("Relu", net.y))))
    assert "y_2 (operand 1 of Relu relu_4) is another array: expected the x x_1" in near_misses(rule(product_of), graph)


def test_inner_results_with_another_reader() -> None:
    net = Net(x=(2, 3))
    inner = net.op("Mul", net.x, net.const(2.0))
    graph = net.done(net.op("Mul", inner, net.const(3.0)), net.op("Neg", inner))
    assert "mul_3 inside the pattern has another user" in near_misses(scale_folding(), graph)
    shared = op("Mul", op("Mul", "x", scalar("a")).shared(), scalar("b"))
    check(rule(shared, op("Mul", "x", np.float32([6.0]))), graph, ["Mul", "Mul", "Neg"])


def test_inner_results_that_are_returned() -> None:
    net = Net(x=(2, 3))
    inner = net.op("Mul", net.x, net.const(2.0))
    assert "has another user" in near_misses(scale_folding(), net.done(inner, net.op("Mul", inner, net.const(3.0))))


def test_optional_pieces_and_operands() -> None:
    pattern = op("Relu", maybe("Cast|Identity", op("Neg", "x"), name="between").choices[0], ...)
    assert pattern.size == 3
    tolerant = rule(op("Relu", maybe("Identity", op("Neg", "x"))), op("Abs", "x"))
    for between in (False, True):
        net = Net(x=(2, 3))
        y = net.op("Neg", net.x)
        graph = net.done(net.op("Relu", net.op("Identity", y) if between else y))
        assert len(tolerant.run(graph).sites) == 1 and op_types(graph) == ["Abs"]
    net = Net(x=(2, 3))
    clip = net.done(net.op("Clip", net.op("Neg", net.x), None, net.const(1.0)))
    assert rule(op("Clip", op("Neg", "x"), None)).run(clip).sites == []
    assert rule(op("Clip", op("Neg", "x"), "low?", "high?"), op("Clip", "x", "low?", "high?")).run(clip).sites
    assert op_types(clip) == ["Clip"] and clip.inputs_of(clip.operators()[0])[1] is None


def test_conditions_of_constants_and_attributes() -> None:
    net = Net(x=(2, 3))
    y = net.op("Softmax", net.op("Mul", net.x, net.const(-2.0)), axis=0)
    graph = net.done(y)
    positive = scalar("a", accept=lambda v: v > 0, expected="positive")
    assert "is -2, expected positive" in near_misses(rule(op("Softmax", op("Mul", "x", positive))), graph)
    scale = op("Mul", "x", scalar("a"))
    assert "axis of Softmax is 0, expected 1" in near_misses(rule(op("Softmax", scale, axis=1)), graph)
    known = constant("c", accept=lambda v: v.ndim == 1, expected="a vector")
    assert "is not a vector" in near_misses(rule(op("Softmax", op("Mul", "x", known))), graph)
    assert rule(op("Softmax", scale, axis=lambda a: a < 1), op("Softmax", "x", axis=0)).run(graph).sites


def test_products_and_polynomials_however_they_are_spelled() -> None:
    silu = rule(product(0.5, "x", op("Exp", polynomial("x", {2: 1.0, 1: 3.0}))), op("Abs", "x"))
    net = Net(x=(2, 3))
    three = net.op("Add", net.op("Mul", net.x, net.const(3.0)), net.op("Mul", net.x, net.x))
    graph = net.done(net.op("Div", net.op("Mul", net.op("Exp", three), net.x), net.const(2.0)))
    assert len(silu.run(graph).sites) == 1 and op_types(graph) == ["Abs"]


def test_pieces_after_the_root() -> None:
    after = (then(scaled(HERE, "s")), then("Relu", required="no Relu follows", replaced=False))
    settled = rule(op("Exp", op("Neg", "x")), op("Exp", "x"), after=after)
    net = Net(x=(2, 3))
    e = net.op("Div", net.op("Exp", net.op("Neg", net.x)), net.const(2.0))
    graph = net.done(net.op("Relu", e))
    assert settled.run(graph).sites == ["Exp + Div + Neg"] and op_types(graph) == ["Exp", "Relu"]
    net = Net(x=(2, 3))
    assert "no Relu follows" in near_misses(settled, net.done(net.op("Abs", net.op("Exp", net.op("Neg", net.x)))))


class TwiceByLoops(PatternRule):
    """A replacement that is built."""

    pattern = op("Add", "x", "x")

    def replace(self, m: Match) -> str:
        return str(Builder(m.graph).elementwise(lambda x: 2 * x, m["x"]))


def test_a_replacement_that_is_built() -> None:
    net = Net(x=(2, 3))
    graph = net.done(net.op("Relu", net.op("Add", net.x, net.x)))
    assert TwiceByLoops().run(graph).sites == ["Add"]
    graph.validate()
    assert op_types(graph) == ["Relu"] and len(graph.kernels()) == 1


def test_an_array_that_stands_in() -> None:
    twice = rule(op("Neg", op("Neg", "x")), "x")
    net = Net(x=(2, 3))
    check(twice, net.done(net.op("Relu", net.op("Neg", net.op("Neg", net.x)))), ["Relu"])
    net = Net(x=(2, 3))
    check(twice, net.done(net.op("Neg", net.op("Neg", net.x))), ["Identity"])
    net = Net(x=(2, 3))
    flat = net.op("Reshape", net.x, net.const([6], np.int64), shape=(6,))
    with pytest.raises(DaceoptError, match=r"has shape \(2, 3\) .* expected \(6,\)"):
        rule(op("Neg", op("Reshape", "x", ...)), "x").run(net.done(net.op("Neg", flat)))


def test_symbolic_shapes_of_inner_operators() -> None:
    n = dace.symbolic.symbol("s0", dace.int64)
    net = Net(x=(n, 3))
    net.graph.symbols["s0"] = (net.x, 0)
    graph = net.done(net.op("Neg", net.op("Abs", net.x, shape=(n, 3)), shape=(n, 3)))
    rule(op("Neg", op("Abs", "x")), op("Transpose", op("Transpose", "x", perm=[1, 0]), perm=[1, 0])).run(graph)
    graph.validate()
    assert [graph.shape(graph.result(o, 0)) for o in graph.operators()] == [(3, n), (n, 3)]


def test_types_of_inner_operators() -> None:
    net = Net(x=(2, 3), y=(2, 3))
    graph = net.done(net.op("Max", net.op("Relu", net.x), net.y))
    chosen = op("Where", op("Greater", op("Relu", "x"), "y"), "x", "y")
    assert rule(op("Max", op("Relu", "x"), "y"), chosen).run(graph).sites
    graph.validate()
    assert [graph.dtype(graph.result(n, 0)) for n in graph.operators()] == [
        dace.float32,
        dace.bool_,
        dace.float32,
    ]


def test_other_results_of_the_operator_that_goes() -> None:
    net = Net(x=(2, 3))
    y, mask = net.graph.add_array("y", (2, 3), dace.float32), net.graph.add_array("mask", (2, 3), dace.bool_)
    net.graph.add_operator("Dropout", [net.op("Neg", net.x)], [y, mask])
    dropped = rule(op("Dropout", op("Neg", "x")))
    assert "mask_3, another result of Dropout, has a user" in near_misses(dropped, net.done(y, mask))
    negated = rule(op("Not", op("Dropout", "x", ...)), op("Neg", "x"))
    assert negated.run(net.done(net.op("Not", mask))).sites == []


def test_domains_and_alternatives() -> None:
    graph = Graph("test")
    x = graph.add_input("x", (3,), dace.float32)
    graph.add_operator("Swish", [x], [y := graph.add_array("y", (3,), dace.float32)], domain="my.ops")
    graph.add_output(y)
    assert rule(op("Swish", "x")).run(graph).sites == []
    assert rule(either(op("Exp", "x"), op("my.ops::Swish", "x")), op("Neg", "x")).run(graph).sites == ["Swish"]
    assert op_types(graph) == ["Neg"]


def test_what_cannot_stand_in_a_pattern() -> None:
    with pytest.raises(DaceoptError, match="expected a name, a number"):
        op("Mul", object())


def test_a_pass_looks_at_every_node_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many readers of one array, each of which ends in the pattern but for what they share."""
    asked = []
    consumers = Graph.consumers
    monkeypatch.setattr(Graph, "consumers", lambda g, n: asked.extend(found := consumers(g, n)) or found)
    counts = []
    for length in (50, 100):
        net = Net(x=(2, 3))
        inner = net.op("Mul", net.x, net.const(2.0))
        graph = net.done(*(net.op("Mul", inner, net.const(float(k))) for k in range(length)))
        asked.clear()
        assert len(scale_folding().run(graph).near_misses) == length
        counts.append(len(asked))
    assert counts[1] < 3 * counts[0]


# ---------------------------------------------------------------- rules of the user's


USER_FILE = '''
from daceopt.passes.patterns import PatternRule, op, pattern_rule, scalar

class DoubleNegation(PatternRule):
    """Nothing instead of two signs."""
    pattern = op("Neg", op("Neg", "x"))
    replacement = "x"

@pattern_rule(op("Mul", op("Mul", "x", scalar("a")), scalar("b")))
def one_scale(m):
    """One constant instead of two."""
    return op("Mul", "x", m["a"] * m["b"])
'''


def test_rules_of_a_file_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text(USER_FILE)
    with restored():
        assert transformations.load_file(path) == ["double-negation", "one-scale"]
        net = Net(x=(2, 3))
        y = net.op("Mul", net.op("Mul", net.x, net.const(2.0)), net.const(3.0))
        graph = net.done(net.op("Relu", net.op("Neg", net.op("Neg", y))))
        recipe = Recipe("r", ("one-scale", "double-negation"))
        steps = Runner(recipe, "numerics").run(graph)
        assert [s.sites for s in steps] == [["Mul + Mul"], ["Neg + Neg"]] and op_types(graph) == ["Mul", "Relu"]
        first = recipe.fingerprint()
        path.write_text(USER_FILE.replace('m["a"] * m["b"]', 'm["b"] * m["a"]'))
        transformations.load_file(path)
        assert recipe.fingerprint() != first


class EditsAnArray(PatternRule):
    """Wrong on purpose: adds to the graph while it looks."""

    pattern = op("Relu", "x")

    def why_not(self, m: Match) -> str | None:
        m.graph.add_constant("planted", np.zeros(2))
        return "never"


class EditsAnAttribute(EditsAnArray):
    def why_not(self, m: Match) -> str | None:
        m.nodes[0].attributes["alpha"] = 2
        return "never"


class EditsAnEdge(EditsAnArray):
    def why_not(self, m: Match) -> str | None:
        m.graph.outputs.reverse()
        return "never"


def two_outputs() -> Graph:
    net = Net(x=(2, 3))
    return net.done(net.op("Relu", net.x), net.op("Exp", net.x))


@pytest.mark.parametrize(
    ("planted", "said"),
    [(EditsAnArray, r"\+ planted_4: Descriptor"), (EditsAnAttribute, "alpha=2"), (EditsAnEdge, "-> exp_3, relu_2")],
)
@pytest.mark.parametrize("verify", ["structure", "numerics"])
def test_match_must_not_edit(planted: type[PatternRule], said: str, verify: str) -> None:
    with pytest.raises(VerificationError, match=f"step {planted.kebab_name()}: match edited graph test: .*{said}"):
        Runner(Recipe("r", (planted(),)), verify).run(two_outputs())


def test_matching_is_not_watched_without_verification() -> None:
    Runner(Recipe("r", (EditsAnArray(),))).run(two_outputs())
