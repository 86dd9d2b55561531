"""Operators that ONNX's shape inference misjudges, spelled out so that it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
from onnx import AttributeProto, helper

from daceopt.ops.core import subgraph

_MAIN = ("", "ai.onnx")
_POOLS = ("AveragePool", "LpPool", "MaxPool")


def spell_out(model: onnx.ModelProto) -> None:
    """Say in attributes what of these operators follows from defaults, in the main graph and in those inside."""
    kernels: dict[str, Sequence[int]] = {}
    for graph in subgraph.all_graphs(model.graph):
        kernels |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim][2:] for v in graph.input}
        kernels |= {t.name: list(t.dims)[2:] for t in graph.initializer}
        for node in graph.node:
            if node.domain in _MAIN:
                _spell_out(node, kernels)


def lower_ceiling(model: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Take ``ceil_mode`` from the first pool of ``model`` whose last windows would all begin in the padding behind the
    image; was there one? Inference of older versions counts them, while no runtime computes them.

    ``inferred``: the same model with shapes.
    """
    values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    for node in model.graph.node:
        attributes = {a.name: a for a in node.attribute}
        if (
            node.op_type not in _POOLS
            or node.domain not in _MAIN
            or "ceil_mode" not in attributes
            or not attributes["ceil_mode"].i
        ):
            continue
        extents, declared = (shapes.get(n, [])[2:] for n in (node.input[0], node.output[0]))
        whole = _floors(attributes, extents) if extents and all(extents) else None
        if whole is not None and whole != declared:
            attributes["ceil_mode"].i = 0
            return True
    return False


def _floors(attributes: Mapping[str, AttributeProto], extents: Sequence[int]) -> list[int] | None:
    """The extents of a pool's result without ``ceil_mode``; None where that keeps another window."""
    rank = len(extents)
    kernel, strides, dilations = (
        attributes[n].ints if n in attributes else [1] * rank for n in ("kernel_shape", "strides", "dilations")
    )
    pads = attributes["pads"].ints if "pads" in attributes else [0] * (2 * rank)
    floors = []
    for k, n in enumerate(extents):
        begin, end, stride = pads[k], pads[rank + k], strides[k]
        room = n + begin + end - (kernel[k] - 1) * dilations[k] - 1
        floors.append(room // stride + 1)
        if room % stride and floors[-1] * stride < n + begin:
            return None
    return floors


def with_stand_ins(model: onnx.ModelProto, inferred: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """What ``inferred`` makes of ``model``, where operators without a rule of inference keep the type of their data."""
    if not any(map(_is_unknown, model.graph.node)):
        return inferred(model)
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    for node in filter(_is_unknown, twin.graph.node):
        node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output))
    inferred_twin = inferred(twin)
    for node, own in zip(inferred_twin.graph.node, model.graph.node, strict=True):
        node.CopyFrom(own)
    return inferred_twin


def _is_unknown(node: onnx.NodeProto) -> bool:
    return node.domain in _MAIN and node.op_type == "GroupNormalization"


def _spell_out(node: onnx.NodeProto, kernels: Mapping[str, Sequence[int]]) -> None:
    attributes = {a.name: a for a in node.attribute}
    if node.op_type == "STFT" and "onesided" not in attributes:
        node.attribute.append(helper.make_attribute("onesided", 1))
    if node.op_type == "ConvTranspose" and "output_padding" in attributes and "output_shape" not in attributes:
        _pad_same(node, attributes, kernels)


def _pad_same(
    node: onnx.NodeProto, attributes: Mapping[str, AttributeProto], kernels: Mapping[str, Sequence[int]]
) -> None:
    """``SAME_UPPER`` and ``SAME_LOWER`` are so much padding that ``output_padding`` does not lengthen the result, which
    is ``stride`` times as long as the data where that is possible."""
    mode = helper.get_attribute_value(attributes["auto_pad"]).decode() if "auto_pad" in attributes else "NOTSET"
    kernel = attributes["kernel_shape"].ints if "kernel_shape" in attributes else kernels.get(node.input[1])
    if not mode.startswith("SAME") or not kernel or not all(kernel):
        return
    strides, dilations = (
        attributes[n].ints if n in attributes else [1] * len(kernel) for n in ("strides", "dilations")
    )
    totals = [
        max(added + (k - 1) * d + 1 - s, 0)
        for added, k, d, s in zip(attributes["output_padding"].ints, kernel, dilations, strides, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    others = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
    del node.attribute[:]
    node.attribute.extend(others)
    node.attribute.append(helper.make_attribute("pads", small + large if mode == "SAME_UPPER" else large + small))
