"""Batch normalization folded into the weights of the convolution before it, for inference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daceopt.passes.patterns import Match, Op, PatternRule, constant, either, op


@dataclass(frozen=True)
class BatchNormFolding(PatternRule):
    """Scale the weights and shift the bias by the running statistics; all of them must be constants.

    before:  y = BatchNormalization(Conv(x, w, b), gamma, beta, mean, var; training_mode=0)
    after:   y = Conv(x, w * f, (b - mean) * f + beta)     with f = gamma / sqrt(var + epsilon)
    """

    pattern = op(
        "BatchNormalization",
        op("Conv", "x", constant("w"), either(None, constant("b"))).named("conv").called("the result of a convolution"),
        *(constant("gamma"), constant("beta"), constant("mean"), constant("variance")),
    ).named("norm")

    def why_not(self, m: Match) -> str | None:
        node = m.node("norm")
        statistics = any(n is not None for n in m.graph.outputs_of(node)[1:])
        training = node.attribute("training_mode", 0) or statistics
        return "it is in training mode: the statistics come from the batch" if training else None

    def replace(self, m: Match) -> Op:
        conv = m.node("conv")
        hint = m.graph.source.names.get(m.graph.operand(conv, 1), "weights")
        w, b = _fold(m)
        weights, bias = m.graph.add_constant(hint, w), m.graph.add_constant(f"{hint}_bias", b)
        return op("Conv", "x", weights, bias, **conv.attributes)


def _fold(m: Match) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias, computed in float64 and rounded once."""
    gamma, beta, mean, variance = (m[n].astype(np.float64) for n in ("gamma", "beta", "mean", "variance"))
    w, b = m["w"], m.get("b", np.zeros_like(mean)).astype(np.float64)
    factor = gamma / np.sqrt(variance + m.node("norm").attribute("epsilon", 1e-5))
    weights = w.astype(np.float64) * factor.reshape(-1, *[1] * (w.ndim - 1))
    return weights.astype(w.dtype), ((b - mean) * factor + beta).astype(w.dtype)
