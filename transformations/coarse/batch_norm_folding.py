"""Batch normalization folded into the weights of the convolution before it, for inference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from daceopt.ir.graph import Graph
from daceopt.transform import NearMiss, Site, Transformation, sweep
from daceopt.transformations.coarse._patterns import is_op, made_by, reads_only


@dataclass(frozen=True)
class BatchNormFolding(Transformation):
    """Scale the weights and shift the bias by the running statistics; all of them must be constants.

    before:  y = BatchNormalization(Conv(x, w, b), gamma, beta, mean, var; training_mode=0)
    after:   y = Conv(x, w * f, (b - mean) * f + beta)     with f = gamma / sqrt(var + epsilon)
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Any) -> Iterable[Site | NearMiss]:
        if not is_op(node, "BatchNormalization"):
            return
        convolution = made_by(graph, graph.inputs_of(node)[0], "Conv")
        if convolution is None:
            return
        reason = _refuse(graph, node, convolution)
        yield NearMiss(node, reason) if reason else Site(graph, (node, convolution))

    def apply(self, site: Site) -> None:
        graph, (node, convolution) = site.graph, site.nodes
        x, weights = graph.inputs_of(convolution)[:2]
        w, b = _folded(graph, node, convolution)
        hint = graph.source_names.get(str(weights), "weights")
        operands = [x, graph.add_constant(hint, w), graph.add_constant(f"{hint}_bias", b)]
        output = graph.outputs_of(node)[0]
        sources = [graph.producer(n) for n in graph.inputs_of(convolution) if n is not None]
        graph.remove(node)
        graph.remove(convolution)
        graph.add_operator("Conv", operands, [output], convolution.attributes)
        sweep(graph, sources)


def _refuse(graph: Graph, node: Any, convolution: Any) -> str | None:
    if node.attribute("training_mode", 0) or any(n is not None for n in graph.outputs_of(node)[1:]):
        return "it is in training mode: the statistics come from the batch"
    if not reads_only(graph, str(graph.inputs_of(node)[0]), node):
        return "the result of the convolution has another user"
    operands = [*graph.inputs_of(node)[1:], *graph.inputs_of(convolution)[1:]]
    varying = [n for n in operands if n is not None and n not in graph.constants]
    return f"{varying[0]} is no constant: its value may change from call to call" if varying else None


def _folded(graph: Graph, node: Any, convolution: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias, computed in float64 and rounded once."""
    gamma, beta, mean, variance = (graph.constants[str(n)].astype(np.float64) for n in graph.inputs_of(node)[1:])
    _, weights, *bias = graph.inputs_of(convolution)
    w = graph.constants[str(weights)]
    b = graph.constants[bias[0]].astype(np.float64) if bias and bias[0] is not None else np.zeros_like(mean)
    factor = gamma / np.sqrt(variance + node.attribute("epsilon", 1e-5))
    scaled = w.astype(np.float64) * factor.reshape(-1, *[1] * (w.ndim - 1))
    return scaled.astype(w.dtype), ((b - mean) * factor + beta).astype(w.dtype)
