"""Max and average pooling as Pool nodes; pooling over all of the image as reductions."""

from __future__ import annotations

from daceopt.ir.builder import Builder
from daceopt.ir.graph import Graph
from daceopt.ops.convolution import why_not_window, window
from daceopt.ops.library import Pool
from daceopt.ops.reduction import mean
from daceopt.ops.registry import FLOATS, Names, Operator, lowering, supports


@lowering("MaxPool", "AveragePool", types=FLOATS)
def pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x, out = str(inputs[0]), str(outputs[0])
    kernel = [int(k) for k in node.attribute("kernel_shape")]
    b.library(
        Pool,
        {"X": x},
        {"Y": out},
        kind="max" if node.op_type == "MaxPool" else "average",
        kernel=kernel,
        ceil_mode=bool(node.attribute("ceil_mode", 0)),
        count_include_pad=bool(node.attribute("count_include_pad", 0)),
        **window(b.graph, node, x, kernel, out),
    )


@supports("MaxPool", "AveragePool")
def why_not_pool(graph: Graph, node: Operator) -> str | None:
    if any(graph.outputs_of(node)[1:]):
        return "output Indices of MaxPool; supported is Y only"
    return why_not_window(graph, node, len(node.attribute("kernel_shape")))


@lowering("GlobalAveragePool", types=FLOATS)
def global_average_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    x = str(inputs[0])
    mean(b, None, x, axes=range(2, len(b.graph.shape(x))), keepdims=True, out=outputs[0])


@lowering("GlobalMaxPool", types=FLOATS)
def global_max_pool(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    axes = list(range(2, len(b.graph.shape(str(inputs[0])))))
    b.graph.add_operator("ReduceMax", inputs, outputs, {"axes": axes, "keepdims": 1})
