"""A graph as text and back: nothing is lost, nothing is evaluated, and wrong text is told with the line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy
from onnx import helper

from daceopt import recipes
from daceopt.autodiff import differentiate
from daceopt.errors import GraphTextError, Unsupported
from daceopt.ir.control.region_builder import ChoiceBuilder
from daceopt.ir.data.arrays import SEED
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction, HostCall
from daceopt.ir.scalar import expression_text, scalar, types
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.ops import has_gradient, lower_all
from daceopt.passes.runner import Runner
from tests.ir.carried import Made, logsumexp, recurrence
from tests.ir.carried import N as N_OF_ROWS
from tests.ir.control.test_region import running_sum
from tests.ir.graph_text_checking import assert_same_results, read_back
from tests.properties.graphs import NOMINAL, Maker

N = dace.symbolic.symbol("n", dace.int64)
F = dace.float32


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made: dict[str, np.ndarray] = {SEED: np.array([7])} if graph.uses_seed else {}
    for name in graph.inputs:
        shape = [
            n if isinstance(n, int) else int(n.subs(dict.fromkeys(n.free_symbols, NOMINAL))) for n in graph.shape(name)
        ]
        made[name] = rng.standard_normal(shape).astype(types.to_numpy(graph.dtype(name)))
    return made


def check(graph: Graph, also: dict[str, np.ndarray] | None = None) -> Graph:
    """``also``: arrays of another graph that say what the sizes are."""
    found = read_back(graph)
    assert_same_results(graph, found, (also or {}) | feeds(graph))
    return found


# ---------------------------------------------------------------- whole graphs


def everything() -> Graph:
    """Arrays, sizes, views, constants, random numbers, kernels and library nodes of all kinds in one graph."""
    graph = Graph("everything")
    x = graph.add_input("x", (N, 6), F)
    scale = graph.add_input('weights "A" \\ <script>\n', (), F)
    graph.symbols["n"] = (x, 0)
    graph.assumptions.append(N - 3)
    graph.source.opset |= {"": 21, "my.ops": 1}
    graph.source.trips["step0"] = 4
    b = Builder(graph, "part")
    with graph.label_nodes(origins=("encoder.layer.0", 'a "quoted" <name>')):
        product = b.matmul(x, graph.add_constant("w", np.arange(36, dtype=np.float32).reshape(6, 6)), alpha=0.25)
    turned = b.transpose(b.expand(b.slice(product, [0], [6], [2], [1]), (2, N, 3)), [2, 0, 1])
    total = b.reduce("sum", lambda v, s: v * s / 3, turned, scale, axes=[1], keepdims=True)
    noisy = graph.add_array("noisy", (3, 1, N), F, strides=(1, 3, 3))
    draw = {"v": (total, lambda *i: i), "seed": (graph.seed(), lambda *i: (0,))}
    b.map(
        (3, 1, N),
        draw,
        {"out": (noisy, lambda *i: i)},
        lambda i, v, seed: v + scalar.cast(scalar.uniform(seed, 5, i[2]), F),
    )
    graph.add_output(b.copy(noisy))
    return graph


def test_everything_at_once() -> None:
    graph = everything()
    check(graph)
    Runner(recipes.get("cpu")).run(graph)
    assert "schedule:" in render(graph) and "reuse memory" in render(graph)
    found = check(graph)
    assert found.options.reuse_memory and found.source.opset == {"": 21, "my.ops": 1}
    assert found.source.trips == {"step0": 4}


def test_known_contents() -> None:
    graph = Graph("known")
    x = graph.add_input("x", (3,), dace.int64)
    graph.source.shape_values[x] = (3, N * 2, sympy.floor(N / 2))
    graph.size_names["n"] = None
    graph.source.speculative = True
    found = read_back(graph).source
    assert found.shape_values == graph.source.shape_values and found.speculative


def test_a_graph_that_was_read_goes_on() -> None:
    """Names that it makes are new, and steps do to it what they do to the graph that was written."""
    graph, large = everything(), {}
    found = parse(render(graph, large), large)
    assert found.add_array("x", (2,), F) not in graph.arrays()
    found.prune()
    for each in (graph, found):
        Runner(recipes.get("cpu"), "structure").run(each)
    assert_same_results(graph, found, feeds(graph))


VALUES = [
    np.array([np.nan, -np.nan, -0.0, np.inf], np.float32),
    np.array([[1e-45, 3.4e38]], np.float32),
    np.array(True),
    np.array([2**63 - 1, -(2**63)], np.int64),
    np.array([2**64 - 1], np.uint64),
    np.zeros((0, 3), np.float64),
    np.arange(1000, dtype=np.int16),
    np.array(0.1, np.float64),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{v.dtype}{v.shape}".replace(" ", ""))
def test_constants(value: np.ndarray) -> None:
    graph = Graph("constant")
    graph.add_output(Builder(graph).copy(graph.add_constant("c", value)))
    check(graph)


@pytest.mark.parametrize("dtype", types.ALL, ids=types.name_of)
@pytest.mark.parametrize("count", [3, 20])
def test_constants_of_every_type(dtype: Any, count: int) -> None:
    graph = Graph("constant")
    graph.add_output(graph.add_input("x", (1,), F))
    graph.add_constant("c", np.ones(count).astype(types.to_numpy(dtype)))
    read_back(graph)


def test_values_that_are_not_given_are_asked_for() -> None:
    graph = everything()
    with pytest.raises(GraphTextError, match=r"line \d+, column \d+: expected an array that was given with the text"):
        parse(render(graph))


def body_of_onnx() -> Any:
    value = helper.make_tensor_value_info("y", 1, [2])
    return helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "body", [], [value])


ATTRIBUTES = {
    "none": None,
    "number": 3,
    "real": 1e-5,
    "text": 'a "b"\n\\',
    "yes": True,
    "words": ["a", ""],
    "numbers": [1, -2],
    "reals": [0.1, float("inf")],
    "empty": [],
    "array": np.arange(4).reshape(2, 2),
    "large": np.arange(50.0),
    "strings": np.array([["a", "ä"]], dtype=object),
    "graph": body_of_onnx(),
    "odd name": 1,
    "lambda": 2,
    "nested": [[1, 2], [3.5, "x"]],
}


@pytest.mark.parametrize(("op_type", "domain"), [("Softmax", ""), ("Mine", "my.ops"), ('odd "op" (', "odd; domain")])
def test_operators(op_type: str, domain: str) -> None:
    graph = Graph("operators")
    x = graph.add_input("x", (2, 3), F)
    y, z = graph.add_array("y", (2, 3), F), graph.add_array("z", (2, 3), F)
    node = graph.add_operator(op_type, [x, None, x], [y, None, z], ATTRIBUTES, domain)
    node.label = "called so"
    graph.add_output(y)
    graph.add_output(z)
    found = read_back(graph).nodes()[0]
    assert (found.op_type, found.domain, found.since_version) == (op_type, domain, node.since_version)
    assert found.input_connectors == node.input_connectors and found.output_connectors == node.output_connectors
    given = {k: v for k, v in node.attributes.items() if v is not None}
    assert found.attributes.keys() == given.keys()
    for name, value in given.items():
        assert type(found.attributes[name]) is type(value)
        assert np.array_equal(found.attributes[name], value) if isinstance(value, np.ndarray) else True
        assert isinstance(value, np.ndarray) or found.attributes[name] == value


def test_versions_of_operators() -> None:
    """Where it is that of the opset it goes without saying."""
    graph = Graph("versions")
    graph.source.opset[""] = 11
    x = graph.add_input("x", (2,), F)
    for version in (None, 13):
        y = graph.add_array("y", (2,), F)
        graph.add_operator("Softmax", [x], [y], version=version)
        graph.add_output(y)
    assert [n.since_version for n in read_back(graph).nodes()] == [11, 13]
    assert render(graph).count("Softmax@13(") == 1 and render(graph).count("Softmax(") == 1


def test_values_without_text_are_named() -> None:
    graph = Graph("unknown")
    x, y = graph.add_input("x", (2,), F), graph.add_array("y", (2,), F)
    graph.add_operator("Mine", [x], [y], {"value": object()}, "my.ops")
    graph.add_output(y)
    with pytest.raises(GraphTextError, match="one that it cannot: no text for a value of type object"):
        parse(render(graph))


def test_library_nodes() -> None:
    graph = Graph("library")
    a, c = graph.add_input("a", (2, 3), F), graph.add_input("c", (3, 4), F)
    y = graph.add_array("y", (2, 4), F)
    Builder(graph, "dense").library(Contraction, {"A": a, "B": c}, {"Y": y}, alpha=0.1)
    out = graph.add_array("out", (2, 4), F)
    call = HostCall("call", callback="nowhere:nothing", payload='{"a": 1}', sizes=[3])
    graph.add_node(call, {"In0": y}, {"Out0": out})
    graph.add_output(out)
    product, host = read_back(graph).nodes()
    assert isinstance(product, Contraction) and product.alpha == 0.1
    assert isinstance(host, HostCall) and (host.callback, host.payload) == ("nowhere:nothing", '{"a": 1}')
    assert host.sizes == [3]


def choice() -> Graph:
    graph = Graph("choice")
    condition, x = graph.add_input("c", (), dace.bool_), graph.add_input("x", (4,), F)
    made = ChoiceBuilder(graph, "if", condition)
    for factor, body in zip((2, 3), made.bodies, strict=True):
        body.declare_outputs([body.b.elementwise(lambda v, f=factor: v * f, body.capture(x))])
    y = graph.add_array("y", (4,), F)
    made.finish([y])
    graph.add_output(y)
    return graph


def test_choices() -> None:
    check(choice())


def test_loops() -> None:
    for graph in (running_sum(), running_sum(reverse=True)):
        check(graph)
        backward = differentiate(graph, graph.outputs[:1], graph.inputs)
        for each in (backward.forward, backward.backward):
            Runner(recipes.get("cpu")).run(each)
            check(each)


def test_parts() -> None:
    graph = Graph("parts")
    b = Builder(graph)
    x = graph.add_input("x", (2, 3), F)
    whole = graph.add_array("w", (4, 3), F)
    inner = graph.add_part(whole, "inner", (0, 0), (2, 3))
    left = graph.add_part(inner, "left", (0, 0), (2, 1))
    right = graph.add_part(inner, "right", (0, 1), (2, 2))
    for part, start, end in ((left, 0, 1), (right, 1, 3)):
        b.elementwise(lambda v: v + 1, b.slice(x, [start], [end], [1], [1]), out=part)
    b.elementwise(lambda v: v * 2, x, out=graph.add_part(whole, "below", (2, 0), (2, 3)))
    graph.add_output(b.elementwise(lambda v: -v, whole))
    found = check(graph)
    assert f"in {whole} at [2, 0]" in render(graph)
    assert sorted(found.parts_of(whole)) == sorted(graph.parts_of(whole)) and found.part(left) == graph.part(left)


def test_an_order_that_was_asked_for() -> None:
    graph = Graph("ordered")
    b = Builder(graph)
    x = graph.add_input("x", (4,), F)
    for k in range(3):
        graph.add_output(b.elementwise(lambda v, k=k: v + k, x, label=f"add_{k}"))
    assert not check(graph).is_ordered
    graph.order = tuple(reversed(graph.nodes()))
    found = check(graph)
    assert found.is_ordered and [n.label for n in found.nodes()] == ["add_2", "add_1", "add_0"]


def test_what_is_kept_apart() -> None:
    graph = Graph("apart")
    b = Builder(graph)
    x = graph.add_input("x", (4,), F)
    first, late, last = (b.elementwise(lambda v, k=k: v + k, x) for k in range(3))
    graph.add_output(first)
    graph.apart = {late: True, first: False}
    assert check(graph).apart == graph.apart
    assert f"late {late}" in render(graph) and last not in check(graph).apart


def test_targets_of_a_build() -> None:
    graph = running_sum()
    graph.options = replace(graph.options, target="cuda", reuse_memory=True)
    assert read_back(graph).options == graph.options


@pytest.mark.parametrize("made", [logsumexp, lambda: logsumexp(5, N_OF_ROWS), recurrence])
def test_kernels_that_carry_values(made: Callable[[], Made]) -> None:
    graph, entry = made()
    assert "serial " in render(graph)
    read_back(graph)
    commit(graph, entry, loops_of(graph, entry).tree)
    read_back(graph)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed: int) -> None:
    """Forward and backward, before and after the recipe, sizes open and known."""
    graph = Maker(seed, ("small", "empty", "open")[seed % 3]).build()
    check(graph)
    given = feeds(graph)
    lower_all(graph, keep=has_gradient)
    found = differentiate(graph, graph.outputs[:1], graph.inputs[:1])
    for each in (found.forward, found.backward):
        read_back(each)
        Runner(recipes.get("cpu")).run(each)
        check(each, given)


# ---------------------------------------------------------------- expressions

X, Y = (scalar.symbol(name, F) for name in "xy")
SYMBOLS = {"x": X, "y": Y, "n": N, "in": scalar.symbol("in", F)}
EXPRESSIONS = [
    *(X - Y, X / Y, 1 / X, -1 / X, -X * Y, X * Y / 2, -X / (2 * Y), X - 1, 2 / X, X**-2, X / (Y * N), (X / Y) ** N),
    *(sympy.sqrt(X), 1 / sympy.sqrt(X), (X**Y) ** 2, X ** (-Y), (-1) ** N, sympy.sqrt(2) * X, sympy.exp(1) + sympy.pi),
    *(
        sympy.Rational(3, 4) * X - sympy.Rational(1, 2),
        sympy.Float(0.1) * X,
        sympy.Float(2 / 3, 17),
        sympy.Float("0.1", 40),
    ),
    *(sympy.floor(N / 2) + 3, sympy.Min(3, N), sympy.Max(N, 3, evaluate=False), sympy.ceiling(N / 4), sympy.Mod(N, 3)),
    *(scalar.select(scalar.lt(X, 0), -X, scalar.infinity()), scalar.load(X, N - 1, 0), scalar.cast(X, dace.int32)),
    *(sympy.Mul(2, X + Y, evaluate=False), sympy.Mul(X, 2, evaluate=False), sympy.Add(X, 1, Y, evaluate=False)),
    *(sympy.Add(X + Y, X, evaluate=False), sympy.Mul(X * Y, X, evaluate=False), SYMBOLS["in"] + 1, sympy.Integer(-3)),
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_expressions_are_the_same_trees(expr: Any) -> None:
    source = expression_text.text(expr)
    found = expression_text.parse(source, SYMBOLS.__getitem__)
    assert sympy.srepr(found) == sympy.srepr(expr) and found == expr
    assert expression_text.text(found) == source


@pytest.mark.parametrize("name", sorted(set(scalar.FUNCTIONS) - {"load"}))
def test_every_scalar_function(name: str) -> None:
    row = scalar.FUNCTIONS[name]
    expr = getattr(scalar.functions, name)(*(X, Y, N)[: row.arity])
    assert expression_text.parse(expression_text.text(expr), SYMBOLS.__getitem__) == expr


def test_an_expression_without_text() -> None:
    with pytest.raises(Unsupported, match="no text for Derivative"):
        expression_text.text(sympy.Derivative(sympy.Function("f")(X), X))


HOSTILE = [
    *("__import__('os').system('touch /tmp/hostile')", "x.__class__", "lambda: x", "[x]", "x if y else n", "f'{x}'"),
    *("(y := x)", "x // y", "x @ y", "'a'", "1j", "foo(x)", "select(x)", "load()", "exp()", "x/0", "x(", "", "x, y"),
    *("9**9**9", "Pow(2, Pow(9, 99))", "10**100", "1" * 5000, "(" * 500 + ")" * 500, "-" * 3000 + "x", "1e999"),
    *("Float(1, 9999999999, 3)", "x" + " + x" * 60000, "symbol(x)", "exp(x, evaluate=True)", "x == y", "*x", "x y"),
]


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_expressions_are_refused(source: str) -> None:
    with pytest.raises(GraphTextError):
        expression_text.parse(source, SYMBOLS.__getitem__)


# ---------------------------------------------------------------- wrong text

GOOD = """graph test(x_1: float32[n, 6]) -> k_2
  size n of x_1 axis 0
  k_2: float32[n, 6] = kernel twice
    s0(i0 < n, i1 < 6):
      in0 <- x_1[i0, i1]
      out0: float32 = 2*in0
      out0 -> k_2[i0, i1]
    schedule:
      for i0 < n:
        vector for i1 < 6:
          s0(i0, i1)
"""
WRONG = [
    ("graph test", "grph test", "line 1, column 1: expected 'graph '"),
    ("float32[n, 6]) ->", "float33[n, 6]) ->", "line 1: element type float33: expected one of float32"),
    ("-> k_2\n", "-> k_3\n", "line 1: there is no array 'k_3'"),
    ("x_1: float32[n, 6])", "X1: float32[n, 6])", "line 1: array 'X1': expected lower-case"),
    ("x_1: float32[n, 6])", "x_1: float32[n, 6]", r"line 1, column 31: expected ',', found '-> k_2'"),
    ("size n of x_1 axis 0", "size n of x_1 axis", "line 2, column 15: expected 'axis '"),
    ("size n of", "sizes n of", "line 2, column 9: expected ','"),
    ("= kernel twice", "= kernl twice", "line 3, column 22: expected a node, a view or a constant"),
    ("k_2: float32[n, 6] =", "k_2: float32[m, 6] =", "line 3: 'm' is no size of graph test"),
    ("s0(i0 < n, i1", "s1(i0 < n, i1", r"line 4, column 1: expected 's0\('"),
    ("x_1[i0, i1]", "x_9[i0, i1]", "line 5, column 11: expected an array that a line above declares, found 'x_9'"),
    ("x_1[i0, i1]", "x_1[i0]", "line 5, .*expected 2 places in x_1, found 1"),
    ("x_1[i0, i1]", "x_1[i0, i7]", "line 5: 'i7' is no size"),
    ("2*in0", "2*in1", "line 6: 'in1' is no size of graph test"),
    ("2*in0", "2*", "line 6: expected an expression, found '2\\*'"),
    ("2*in0", "open('x')", "line 6: .*'x' is no number"),
    ("out0 -> k_2[i0, i1]", "out0 -> x_1[i0, i1]", r"line 3, .*a kernel that writes \['k_2'\], found .*\['x_1'\]"),
    ("out0 -> k_2[i0, i1]", "out1 -> k_2[i0, i1]", "line 3: .*output out1 is not assigned"),
    ("out0 -> k_2[i0, i1]", "out0 -> k_2[i0, i1] (mean)", "line 7, .*expected one of sum, prod, max, min, found mean"),
    ("        vector for", "       vector for", "line 10: expected an even number of blanks"),
    ("vector for i1", "wide for i1", "in the schedule that begins in line 9: line 2 of a schedule: a wide loop"),
    ("    s0(i0 < n", "      s0(i0 < n", "line 4: expected 2 blanks|line 3, .*statements"),
    ("kernel twice", "Softmax(x_1; axis=[)", "line 3, .*expected a value, found"),
    ("kernel twice", "Softmax(x_5)", "line 3, .*declares, found 'x_5'"),
    ("kernel twice", "library Nothing(A=x_1)", "line 3, .*the class of a library node; import .*found Nothing"),
    ("kernel twice", 'library HostCall(In0=x_1; label="x")', "line 3, .*"),
    ("kernel twice", "view x_1 strides [6, 1] offset os", "line 3: 'os' is no size"),
    ("kernel twice", "[1, 2, 3]", "line 3, .*a constant of known shape"),
    ("kernel twice", 'unreadable Tasklet() "code"', "line 3, .*a node that text can say, found one that it cannot"),
]


def test_good_text_is_read() -> None:
    assert render(parse(GOOD)) == GOOD


DOCUMENTS = [Path(__file__).parents[3] / "docs" / name for name in ("architecture.md", "rooms/ir-nodes.md")]
TEXTS = [t for p in DOCUMENTS for t in re.findall(r"```\n(graph .*?)```", p.read_text(encoding="utf-8"), re.DOTALL)]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_text_in_the_documents_is_read(text: str) -> None:
    graph = parse(text)
    assert render(graph) == text
    graph.validate()


@pytest.mark.parametrize(("old", "new", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_text_is_told_with_the_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(GraphTextError, match=message):
        parse(GOOD.replace(old, new, 1))


def test_every_broken_text_is_refused_or_read() -> None:
    """No error of another kind, wherever the text is cut or a sign is lost."""
    text = render(everything(), large := {})
    for at in range(0, len(text), 29):
        for broken in (text[:at], text[:at] + text[at + 1 :], text[:at] + "]" + text[at:]):
            with contextlib.suppress(GraphTextError):
                parse(broken, large)


def test_sizes_of_a_call_of_python() -> None:
    graph = Graph("call")
    x, y = graph.add_input("x", (N, 2), F), graph.add_array("y", (3,), dace.int64)
    graph.symbols["n"] = (x, 0)
    call = HostCall("call", callback="tests.ir.text.test_parse:sizes_given", sizes=[N, 2 * N + 1, 7])
    graph.add_node(call, {"In0": x}, {"Out0": y})
    graph.add_output(y)
    (node,) = read_back(graph).nodes()
    assert isinstance(node, HostCall) and list(map(str, node.sizes)) == ["n", "2*n + 1", "7"]
    found = interpret(graph, {x: np.zeros((5, 2), np.float32)})[y]
    np.testing.assert_array_equal(found, [5, 11, 7])


def sizes_given(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    outputs[0][...] = inputs[1]
