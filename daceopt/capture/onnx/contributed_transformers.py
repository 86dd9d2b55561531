"""Rules of :mod:`daceopt.capture.onnx.contributed` for what ONNX Runtime's optimizer fuses in networks of attention."""

from __future__ import annotations

import math

import numpy as np

from daceopt.capture.onnx.contributed import Expansion, Refused, expands


@expands("FusedMatMul", "TransposeMatMul")
def _product(e: Expansion) -> None:
    if e.attribute("transBatchA", 0) or e.attribute("transBatchB", 0) or e.opset < 12:
        raise Refused("batch dimensions that are moved")
    a, b = ("...ji" if e.attribute("transA", 0) else "...ij"), ("...kj" if e.attribute("transB", 0) else "...jk")
    total = e.op("Einsum", e.at(0), e.at(1), equation=f"{a},{b}->...ik")
    e.result(e.op("Mul", total, e.constant(e.attribute("alpha", 1.0))))


def _gelu(e: Expansion, x: str) -> str:
    error = e.op("Erf", e.op("Mul", x, e.constant(math.sqrt(0.5))))
    return e.op("Mul", e.op("Mul", x, e.constant(0.5)), e.op("Add", error, e.constant(1.0)))


@expands("Gelu")
def _gelu_alone(e: Expansion) -> None:
    e.result(_gelu(e, e.at(0)))


@expands("BiasGelu")
def _biased_gelu(e: Expansion) -> None:
    e.result(_gelu(e, e.op("Add", e.at(0), e.at(1))))


@expands("FastGelu")
def _fast_gelu(e: Expansion) -> None:
    """By a hyperbolic tangent."""
    x = e.op("Add", e.at(0), e.at(1)) if e.at(1) else e.at(0)
    cube = e.op("Mul", e.op("Mul", x, x), e.op("Mul", x, e.constant(0.044715)))
    slope = e.op("Tanh", e.op("Mul", e.op("Add", x, cube), e.constant(math.sqrt(2 / math.pi))))
    e.result(e.op("Mul", e.op("Mul", x, e.constant(0.5)), e.op("Add", slope, e.constant(1.0))))


@expands("QuickGelu")
def _quick_gelu(e: Expansion) -> None:
    x = e.at(0)
    e.result(e.op("Mul", x, e.op("Sigmoid", e.op("Mul", x, e.constant(e.attribute("alpha", 1.702))))))


def _mean(e: Expansion, x: str) -> str:
    """Of each row."""
    if e.opset < 18:
        return e.op("ReduceMean", x, axes=[-1], keepdims=1)
    return e.op("ReduceMean", x, e.constant([-1], np.int64), keepdims=1)


def _normalize(e: Expansion, x: str, centred: bool, gamma: str, beta: str) -> str:
    epsilon = e.attribute("epsilon", 1e-12)
    if centred and e.opset >= 17:
        return e.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)
    rest = e.op("Sub", x, _mean(e, x)) if centred else x
    deviation = e.op("Sqrt", e.op("Add", _mean(e, e.op("Mul", rest, rest)), e.constant(epsilon)))
    scaled = e.op("Mul", e.op("Div", rest, deviation), gamma)
    return e.op("Add", scaled, beta) if beta else scaled


def _only_first(e: Expansion, *allowed: int) -> None:
    if any(name for k, name in enumerate(e.node.output) if k not in (0, *allowed)):
        raise Refused("statistics as results")


@expands("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_normalization(e: Expansion) -> None:
    _only_first(e, 3)
    centred = e.node.op_type == "SkipLayerNormalization"
    bias = e.at(4 if centred else 3)
    total = e.op("Add", e.at(0), e.at(1))
    total = e.op("Add", total, bias) if bias else total
    e.result(total, 3)
    e.result(_normalize(e, total, centred, e.at(2), e.at(3) if centred else ""))


@expands("EmbedLayerNormalization")
def _embedding(e: Expansion) -> None:
    """Rows of the tables of words, places and segments, added and normalized; and how many words each text has."""
    ids, segments, words, places, kinds, gamma, beta, mask, positions = (e.at(k) for k in range(9))
    if e.attribute("mask_index_type", 0):
        raise Refused("another form of the mask")
    if not positions:
        length = e.op("Gather", e.op("Shape", ids), e.constant(1, np.int64), axis=0)
        positions = e.op("Range", e.constant(0, np.int64), length, e.constant(1, np.int64))
    total = e.op("Add", e.op("Gather", words, ids, axis=0), e.op("Gather", places, positions, axis=0))
    total = e.op("Add", total, e.op("Gather", kinds, segments, axis=0)) if segments else total
    e.result(_normalize(e, total, True, gamma, beta))
    e.result(total, 2)
    if len(e.node.output) > 1 and e.node.output[1]:
        e.result(_lengths(e, ids, mask), 1)


def _lengths(e: Expansion, ids: str, mask: str) -> str:
    if not mask:
        return e.op("Mul", _sum(e, ids), e.constant(0, np.int32))
    return _sum(e, mask)


def _sum(e: Expansion, rows: str) -> str:
    if e.opset < 13:
        return e.op("ReduceSum", rows, axes=[1], keepdims=0)
    return e.op("ReduceSum", rows, e.constant([1], np.int64), keepdims=0)


@expands("Attention")
def _attention(e: Expansion) -> None:
    """Self-attention from one product for queries, keys and values; the mask, if any, has a number for each key."""
    _only_first(e)
    heads = int(e.attribute("num_heads", 0))
    if any(map(e.at, (4, 5, 6))) or "qkv_hidden_sizes" in e.attributes or heads < 1:
        raise Refused("states of earlier calls, or sizes of their own")
    rows = e.op("MatMul", e.at(0), e.at(1))
    rows = e.op("Add", rows, e.at(2)) if e.at(2) else rows
    shape = e.constant([0, 0, 3, heads, -1], np.int64)
    parts = e.op("Transpose", e.op("Reshape", rows, shape), perm=[2, 0, 3, 1, 4])
    q, k, v = (e.op("Gather", parts, e.constant(n, np.int64), axis=0) for n in range(3))
    scores = e.op("MatMul", q, e.op("Transpose", k, perm=[0, 1, 3, 2]))
    size = int(e.value(e.at(1)).shape[1]) // 3 // heads
    scores = e.op("Mul", scores, e.constant(e.attribute("scale", 0.0) or 1 / math.sqrt(size)))
    scores = e.op("Add", scores, _mask(e)) if e.at(3) else scores
    if e.attribute("unidirectional", 0):
        raise Refused("a mask of its own")
    weights = e.op("Softmax", scores, axis=3)
    mixed = e.op("Transpose", e.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    e.result(e.op("Reshape", mixed, e.constant([0, 0, -1], np.int64)))


def _mask(e: Expansion) -> str:
    """What is added to scores: nothing for keys that are seen, much less for others."""
    if e.rank(e.at(3)) != 2:
        raise Refused("a mask of lengths")
    visible = e.op("Reshape", e.op("Cast", e.at(3), to=1), e.constant([0, 1, 1, -1], np.int64))
    hidden = e.op("Sub", e.constant(1.0), visible)
    return e.op("Mul", hidden, e.constant(e.attribute("mask_filter_value", -10000.0)))
