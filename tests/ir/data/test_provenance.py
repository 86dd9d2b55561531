"""Kernels are called after what they come from, and nothing but their names depends on it."""

from __future__ import annotations

from dataclasses import replace

import dace
import pytest

from daceopt.autodiff import differentiate
from daceopt.codegen.cpu.kernel_source import kernel_source
from daceopt.ir.data.provenance import fused_label, innermost, shared_path, stems
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ops import lower_all
from daceopt.transformations.local.map_fusion import MapFusion


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("add", "softmax", "add__softmax"),
        ("add__tanh", "tanh__mul", "add__tanh__mul"),
        ("add", "copy", "add"),
        ("copy", "cast", "copy__cast"),
        ("add", "softmax_backward", "add__softmax_backward"),
        ("mul__tanh_backward", "add_backward", "mul__tanh__add_backward"),
    ],
)
def test_a_fused_kernel_is_called_after_its_parts(first: str, second: str, expected: str) -> None:
    assert fused_label(first, second) == expected
    assert stems(expected) == expected.removesuffix("_backward").split("__")


def _layers() -> Graph:
    """softmax(relu(x)), the second time of what the first gives, as two modules."""
    graph = Graph()
    name = graph.add_input("x", (8, 16), dace.float32)
    for module in ("blocks.0", "blocks.1"):
        with graph.label_nodes(origins=(module,)):
            kinds = (("Relu", {}), ("Softmax", {"axis": -1}))
            for op_type, attributes in kinds:
                out = graph.add_array("y", (8, 16), dace.float32)
                graph.add_operator(op_type, [name], [out], attributes)
                name = out
    graph.add_output(name)
    return graph


def test_what_an_operator_becomes_has_its_name_and_its_origin() -> None:
    graph = _layers()
    lower_all(graph)
    assert list(dict.fromkeys(str(k.label) for k in graph.kernels())) == ["relu", "softmax"]
    origins = [graph.origins_of(k) for k in graph.kernels()]
    assert set(origins) == {("blocks.0",), ("blocks.1",)} and origins == sorted(origins)
    assert graph.copy().origins == graph.origins
    MapFusion().run(graph)
    assert [str(k.label) for k in graph.kernels()] == ["relu__softmax"] * len(graph.kernels())


def test_gradients_are_called_after_the_forward_operator() -> None:
    graph = _layers()
    lower_all(graph, keep=lambda node: node.op_type == "Softmax")
    backward = differentiate(graph, graph.outputs, graph.inputs).backward
    lower_all(backward)
    labels = [str(k.label) for k in backward.kernels()]
    assert {"softmax_backward", "relu_backward"} <= set(labels) <= {"softmax_backward", "relu_backward", "relu"}
    by_origin = [backward.origins_of(k) for k in backward.kernels() if k.label == "softmax_backward"]
    assert by_origin[0] == ("blocks.1",) and by_origin[-1] == ("blocks.0",)


def test_equal_kernels_of_two_modules_are_one_text() -> None:
    graph = _layers()
    lower_all(graph)
    texts = [kernel_source(graph, k.kernel).text for k in graph.kernels()]
    count = len(texts) // 2
    assert texts[:count] == texts[count:] and len(set(texts)) == count
    for node in graph.kernels():
        node.kernel = replace(node.kernel, label=f"other_{graph.origins_of(node)[0]}")
        assert texts == [kernel_source(graph, k.kernel).text for k in graph.kernels()]


def test_a_copy_comes_from_where_its_source_does() -> None:
    graph = Graph()
    x = graph.add_input("x", (4,), dace.float32)
    with graph.label_nodes("scale", ("head",)):
        y = Builder(graph).elementwise(lambda v: 2 * v, x, label="other")
    z = Builder(graph).copy(y)
    assert graph.origins == {y: ("head",), z: ("head",)}
    assert [str(k.label) for k in graph.kernels()] == ["scale", "copy"]


def test_the_path_that_origins_share() -> None:
    assert shared_path(()) == shared_path("a b".split()) == ()
    assert shared_path("encoder.0.norm encoder.0.linear".split()) == ("encoder", "0")
    assert shared_path(["/encoder/layer.0/MatMul"]) == ("encoder", "layer.0", "MatMul")
    assert innermost(()) == innermost(("a", "b")) == ""
    assert innermost(("encoder.0.norm", "encoder.0.linear")) == "encoder.0"
    assert innermost(("/encoder/layer.0/MatMul", "/encoder/layer.0/Add")) == "encoder/layer.0"
