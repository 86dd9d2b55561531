"""Attention nodes in the interpreter, in float64 with all scores."""

from __future__ import annotations

import numpy as np

from daceopt.ir.graph.kinds import Node
from daceopt.ir.interpreter.buffers import Memory
from daceopt.ir.interpreter.interpret import interprets
from daceopt.ir.nodes.attention_calls import AttentionBackward, AttentionForward


@interprets("AttentionForward")
def _forward(memory: Memory, node: AttentionForward) -> None:
    operands, written = _Operands(memory, node), memory.graph.writes(node)
    with np.errstate(all="ignore"):
        scores = operands.scores()
        top = scores.max(axis=-1, keepdims=True)
        lse = (
            np.log(np.exp(scores - np.where(np.isinf(top), 0, top)).sum(axis=-1))
            + np.where(np.isinf(top), 0, top)[..., 0]
        )
        lse = np.where(np.isneginf(lse), 0, lse)  # a row that sees no key
        weights = np.exp(scores - lse[..., None])
    operands.store("Y", weights @ operands.share("V"))
    if "Lse" in written:
        stored = np.full(memory.array(written["Lse"]).shape, np.inf)
        stored[:, :, : lse.shape[2]] = lse
        memory.store_sums(written["Lse"], stored)


@interprets("AttentionBackward")
def _backward(memory: Memory, node: AttentionBackward) -> None:
    operands = _Operands(memory, node)
    q, k, v, dy = operands.four("Q"), operands.share("K"), operands.share("V"), operands.four("dY")
    with np.errstate(all="ignore"):
        weights = np.exp(operands.scores() - operands.arrays["Lse"][:, :, : q.shape[2], None])
        of_weights = dy @ v.swapaxes(2, 3)
        of_scores = weights * (of_weights - (dy * operands.four("Y")).sum(axis=-1, keepdims=True)) * node.scale
    operands.store("dQ", of_scores @ k)
    operands.store("dK", of_scores.swapaxes(2, 3) @ q)
    operands.store("dV", weights.swapaxes(2, 3) @ dy)


class _Operands:
    """What a node reads and writes, with four axes."""

    def __init__(self, memory: Memory, node: Node) -> None:
        self.memory, self.node = memory, node
        arrays = {c: memory.array(n) for c, n in memory.graph.reads(node).items()}
        self.arrays = {c: a.astype(np.float64) if a.dtype.kind in "fV" else a for c, a in arrays.items()}

    def four(self, connector: str) -> np.ndarray:
        array = self.arrays[connector]
        if array.ndim == 4:
            return array
        heads = self.node.heads if connector in ("Q", "Y", "dY") else self.node.kv_heads
        batch, length, width = array.shape
        return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)

    def share(self, connector: str) -> np.ndarray:
        """Keys, or values, for each head of queries."""
        heads = self.four(connector)
        return np.repeat(heads, self.four("Q").shape[1] // heads.shape[1], axis=1)

    def scores(self) -> np.ndarray:
        s = self.four("Q") @ self.share("K").swapaxes(2, 3) * self.node.scale
        mask = self.arrays.get("Mask")
        if mask is not None:
            s = s + (np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else mask)
        if self.node.causal:
            s = np.where(np.tril(np.ones(s.shape[2:], np.bool_)), s, -np.inf)
        return s

    def store(self, connector: str, value: np.ndarray) -> None:
        name = self.memory.graph.writes(self.node).get(connector)
        if name is None:
            return
        packed = self.memory.array(name).ndim == 3
        heads = self.node.heads if connector in ("Y", "dQ") else self.node.kv_heads
        if packed or self.memory.array(name).shape[1] != value.shape[1]:
            heads = heads if packed else self.memory.array(name).shape[1]
            batch, _, *rest = value.shape
            value = value.reshape(batch, heads, value.shape[1] // heads, *rest).sum(axis=2)
        if packed:
            value = value.swapaxes(1, 2).reshape(self.memory.array(name).shape)
        self.memory.store_sums(name, value)
