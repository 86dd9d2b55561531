"""Operator nodes, and what users can add to the table of operators."""

from __future__ import annotations

from collections.abc import Iterator

import dace
import numpy as np
import pytest

from daceopt import ops
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import make, operator_class
from daceopt.ir.graph.sdfg import sdfg_of
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.library import Contraction, takes_narrow
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.types import BFLOAT16, HALVES
from daceopt.ops.core import operator_table, registry, widening
from tests.ops.single import check, lowered, single

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def clean() -> Iterator[None]:
    tables = (registry._LOWERINGS, registry._TYPES, registry._FACTORS, registry._CHECKS, registry._GRADIENTS)
    before = [dict(t) for t in tables]
    yield
    for table, content in zip(tables, before):
        table.clear()
        table.update(content)


def test_defaults_come_from_the_schema_of_the_version() -> None:
    assert make("Softmax", "", 1, 1, {}, version=11).attribute("axis") == 1
    assert make("Softmax", "", 1, 1, {}, version=13).attribute("axis") == -1
    assert make("Gelu", "", 1, 1, {}).attribute("approximate") == "none"


def test_connectors_come_from_the_schema() -> None:
    node = make("Concat", "", 3, 1, {"axis": 0})
    assert node.input_connectors == ["Inputs_0", "Inputs_1", "Inputs_2"]
    assert make("LayerNormalization", "", 3, 1, {}).input_connectors == ["X", "Scale", "B"]
    assert make("Clip", "", 3, 1, {}).input_connectors == ["Input", "Min", "Max"]


@pytest.mark.parametrize("name", ['"; system("x"); //', "int", "", "日本", "x" * 300])
def test_hostile_names_make_harmless_classes(name: str) -> None:
    node = make(name, name, 1, 1, {})
    assert (node.op_type, node.domain) == (name, name)
    assert type(node).__name__.isidentifier()
    assert node.input_connectors == ["In_0"]


def test_nodes_survive_json() -> None:
    operator_class("Range")  # DaCe has a class of that name, which the JSON of every memlet mentions
    graph = Graph("json")
    x = graph.add_input("x", (2, 3), dace.float32)
    y, z = (graph.add_array("y", (2, 3), dace.float32) for _ in range(2))
    graph.add_operator("LeakyRelu", [x], [y], {"alpha": 0.3})
    graph.add_operator("Some.Thing", [y], [z], {"value": np.arange(3.0), "text": "a"}, domain="my.domain")
    graph.add_output(z)
    twin = dace.SDFG.from_json(sdfg_of(graph).sdfg.to_json())
    first, second = (n for n in twin.nodes()[0].nodes() if isinstance(n, ops.Operator))
    assert (first.op_type, first.attributes["alpha"], first.since_version) == ("LeakyRelu", 0.3, 16)
    assert (second.op_type, second.domain, second.attributes["text"]) == ("Some.Thing", "my.domain", "a")
    np.testing.assert_array_equal(second.attributes["value"], np.arange(3.0))


def test_a_user_replaces_a_lowering(clean: None) -> None:
    @ops.lowering("Softplus")
    def mine(b, node, inputs, outputs):  # type: ignore[no-untyped-def]
        b.elementwise(lambda x: scalar.maximum(x, 0), inputs[0], out=outputs[0])

    graph, feeds = single("Softplus", [X])
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], np.maximum(X, 0))


def test_a_user_adds_an_operator(clean: None) -> None:
    ops.elementwise("Triple", lambda x: 3 * x, domain="my")
    graph, feeds = single("Identity", [X])
    graph.remove(graph.operators()[0])
    graph.add_operator("Triple", [graph.inputs[0]], [graph.outputs[0]], domain="my")
    np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], 3 * X)
    assert ops.is_supported("Triple", "my") and not ops.is_supported("Triple")
    assert any(row.op_type == "Triple" and row.domain == "my" for row in ops.coverage())


def test_why_unsupported_names_operator_type_and_alternatives() -> None:
    graph, _ = single("Exp", [X])
    x = graph.add_input("k", (2,), dace.int32)
    node = graph.add_operator("Exp", [x], [graph.add_array("y", (2,), dace.int32)])
    assert ops.why_unsupported(graph, node) == "onnx.Exp over int32; supported are float32, float64"
    with pytest.raises(Unsupported, match="cannot lower onnx.Exp: .* over int32"):
        ops.lower(graph, node)
    assert node in graph


@pytest.mark.parametrize(("target", "taken"), [("cpu", (BFLOAT16,)), ("cuda", HALVES), ("unheard of", ())])
def test_factors_are_widened_where_no_library_multiplies_them(target: str, taken: tuple[dace.typeclass, ...]) -> None:
    """When an operator is imported, and when it is lowered; what computes is widened on all targets."""
    for dtype in HALVES:
        graph = Graph("factors", target)
        a, b = (graph.add_input(n, (4, 4), dtype) for n in "ab")
        y, z = (graph.add_array(n, (4, 4), dtype) for n in "yz")
        widening.add_operator(graph, "MatMul", [a, b], [y], {})
        widening.add_operator(graph, "Exp", [y], [z], {})
        graph.add_output(z)
        (product,) = (n for n in graph.operators() if n.op_type == "MatMul")
        (exp,) = (n for n in graph.operators() if n.op_type == "Exp")
        assert (graph.dtype(graph.operand(product, 0)) == dtype) == (dtype in taken)
        assert graph.dtype(graph.operand(exp, 0)) == dace.float32
        bare = Graph("bare", target)
        a, b = (bare.add_input(n, (4, 4), dtype) for n in "ab")
        bare.add_operator("MatMul", [a, b], [bare.add_array("y", (4, 4), dtype)])
        ops.lower_all(bare)
        (node,) = (n for n in bare.nodes() if isinstance(n, Contraction))
        assert takes_narrow(node, bare) == (dtype in taken)


def test_an_unknown_operator_says_so() -> None:
    graph, _ = single("Exp", [X])
    node = graph.add_operator("StringConcat", [graph.inputs[0]] * 2, [graph.add_array("y", (2, 3), dace.int64)])
    assert "no native lowering" in str(ops.why_unsupported(graph, node))


def test_function_bodies(clean: None) -> None:
    """Thresholding has no lowering of its own here, only the standard's body: constants, casts and a comparison."""
    registry._LOWERINGS.pop(("", "ThresholdedRelu"))
    check("ThresholdedRelu", [X], alpha=0.5)


def test_a_body_that_is_out_of_reach_says_why(clean: None) -> None:
    registry._LOWERINGS.pop(("", "HannWindow"))
    graph, _ = single("HannWindow", [np.array(5)])
    assert "not known before running" in str(ops.why_unsupported(graph, graph.operators()[0]))


def test_coverage_lists_every_operator_once() -> None:
    rows = ops.coverage()
    assert len({(r.domain, r.op_type) for r in rows}) == len(rows) > 190
    by_name = {r.op_type: r for r in rows if not r.domain}
    assert (by_name["Softmax"].how, by_name["Softmax"].gradient) == ("native", "rule")
    assert (by_name["Exp"].how, by_name["Exp"].gradient) == ("native", "derived")
    assert (by_name["RotaryEmbedding"].how, by_name["StringConcat"].how) == ("lowered", "fallback")
    assert by_name["Softmax"].versions == (1, 11, 13)
    assert by_name["Softmax"].types == ("float32", "float64", "float16", "bfloat16") and not by_name["Softmax"].refused
    assert by_name["NonMaxSuppression"].refused == () and by_name["Cast"].types[-1] == "uint2"
    assert operator_table.counts(rows)["native"] >= 110
