"""Attention: a product, a mask, a softmax and a second product, each of which has its own gradient.

``DropoutAttention(q, k, v, mask, ratio, training)`` in domain ``daceopt`` is Attention over four axes whose weights are
dropped at random, as Dropout with the attribute ``stream`` drops them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import sympy
from onnx import TensorProto

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.builder import Builder, IndexFunction
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ops.core import values
from daceopt.ops.core.registry import FLOATS, Names, Operator, lowering, supports
from daceopt.ops.families.elementwise import alias
from daceopt.ops.families.softmax import DOMAIN, GUARDED, MULTIPLIED

DROPOUT = "DropoutAttention"
SEES_A_KEY = "every_row_sees_a_key"  # our own attribute: nothing guards against rows that a mask hides entirely
_RAW, _CAPPED, _MASKED, _WEIGHTS = range(4)  # what the fourth output holds


@lowering("Attention", types=FLOATS)
def attention(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """softmax(scale Q K' + mask) V over [batch, heads, length, size] or, packed, [batch, length, heads * size].

    A row that sees no key is zero.
    """
    _attend(b, node, inputs, outputs, lambda weights: weights)


@lowering(DROPOUT, domain=DOMAIN, types=FLOATS)
def dropout_attention(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Some of the weights are zero, the others larger."""

    def drop(weights: str) -> str:
        dropped = b.graph.add_array("dropped", b.graph.shape(weights), b.graph.dtype(weights))
        operands = [weights, values.at(inputs, 4), values.at(inputs, 5)]
        b.graph.add_operator("Dropout", operands, [dropped], {"stream": node.attribute("stream")})
        return dropped

    _attend(b, node, inputs[:4], outputs, drop)


def _attend(b: Builder, node: Operator, inputs: Names, outputs: Names, dropped: Callable[[str], str]) -> None:
    packed = len(b.graph.shape(require(inputs, 0))) == 3
    heads, kv_heads = node.attribute("q_num_heads"), node.attribute("kv_num_heads")
    q = _split_heads(b, require(inputs, 0), heads) if packed else require(inputs, 0)
    k, v = (_split_heads(b, n, kv_heads) if packed else n for n in all_required(inputs, 3)[1:])
    k, past = _with_past(b, k, values.at(inputs, 4), values.at(outputs, 1))
    v, _ = _with_past(b, v, values.at(inputs, 5), values.at(outputs, 2))
    v = b.cast(v, b.graph.dtype(q)) if b.graph.dtype(v) != b.graph.dtype(q) else v
    scale = node.attribute("scale", 1 / math.sqrt(int(b.graph.shape(q)[-1])))
    stages = {_RAW: _grouped_product(b, q, b.transpose(k, [0, 1, 3, 2]), alpha=scale)}
    stages[_CAPPED] = _cap(b, stages[_RAW], node.attribute("softcap", 0.0))
    hiding = Hiding.of(b, node, inputs, stages[_CAPPED], past)
    stages[_MASKED] = hiding.apply(b, stages[_CAPPED])
    shown = values.at(outputs, 3)
    stages[_WEIGHTS] = weights_of(b, node, stages[_MASKED], guarded=hiding.whole_rows, shown=shown is not None)
    if shown is not None:
        alias(b, stages[node.attribute("qk_matmul_output_mode", _RAW)], shown)
    out = outputs[0]
    if out is not None:
        y = _grouped_product(b, dropped(stages[_WEIGHTS]), v, packed=packed)
        b.reshape(b.transpose(y, [0, 2, 1, 3]) if packed else y, b.graph.shape(out), out=out)


def _cap(b: Builder, scores: str, cap: float) -> str:
    """Bounded smoothly by ``cap``, unless that is 0."""
    bound = sympy.Float(cap)
    return b.elementwise(lambda s: bound * sympy.tanh(s / bound), scores, label="softcap") if cap else scores


def weights_of(b: Builder, node: Operator, scores: str, guarded: bool, shown: bool = False) -> str:
    """Over the keys; with ``guarded``, rows of -inf become 0, and so do their gradients. ``shown``: not only products
    read them."""
    own = b.graph.dtype(scores)
    wide = node.attribute("softmax_precision") == TensorProto.DOUBLE
    scores = b.cast(scores, types.from_onnx(TensorProto.DOUBLE)) if wide else scores
    weights = b.graph.add_array("attention", b.graph.shape(scores), b.graph.dtype(scores))
    attributes = {} if shown else {MULTIPLIED: 1}
    if guarded:
        b.graph.add_operator(GUARDED, [scores], [weights], attributes, domain=DOMAIN)
    else:
        b.graph.add_operator("Softmax", [scores], [weights], {"axis": -1, **attributes})
    return b.cast(weights, own) if wide else weights


def apart(graph: Graph, node: Operator) -> list[Shape]:
    """The shapes of queries, keys and values as [batch, heads, length, size], also where they are packed; as they are
    where the attributes say nothing of heads that divide them."""
    shapes = [graph.shape(graph.operand(node, k)) for k in range(3)]
    heads = [node.attribute("q_num_heads", 0), *[node.attribute("kv_num_heads", 0)] * 2]
    if not all(len(s) == 3 and h and isinstance(s[2], int) and s[2] % h == 0 for s, h in zip(shapes, heads)):
        return shapes
    return [(s[0], h, s[1], dim(s[2] // h)) for s, h in zip(shapes, heads)]


def scale_of(graph: Graph, node: Operator) -> float:
    """What an Attention operator, packed or not, multiplies its scores by."""
    return float(node.attribute("scale", 1 / math.sqrt(int(apart(graph, node)[0][3]))))


def _split_heads(b: Builder, x: str, heads: int) -> str:
    """[batch, length, heads * size] as [batch, heads, length, size]"""
    batch, length, width = b.graph.shape(x)
    return b.transpose(b.reshape(x, (batch, length, heads, dim(width // heads))), [0, 2, 1, 3])


def _with_past(b: Builder, x: str, past: str | None, present: str | None) -> tuple[str, Dim]:
    """``x`` after the cached keys or values, and how many there are of those."""
    count: Dim = 0
    if past is not None:
        batch, heads, length, size = b.graph.shape(x)
        count = b.graph.shape(past)[2]
        joined = b.graph.add_array("present", (batch, heads, dim(count + length), size), b.graph.dtype(x))
        b.graph.add_operator("Concat", [past, x], [joined], {"axis": 2})
        x = joined
    if present is not None:
        alias(b, x, present)
    return x, count


def _grouped_product(b: Builder, left: str, right: str, alpha: float = 1.0, packed: bool = False) -> str:
    """left @ right, where each head of ``right`` serves as many heads of ``left`` as there are for each of its own.

    ``packed`` keeps the heads of one position side by side in memory.
    """
    (batch, heads, rows, inner), kv_heads = b.graph.shape(left), b.graph.shape(right)[1]
    columns = b.graph.shape(right)[-1]
    strides = (rows * heads * columns, columns, heads * columns, 1) if packed else None
    y = b.graph.add_array(b.label, (batch, heads, rows, columns), b.graph.dtype(left), strides)
    if heads == kv_heads:
        b.library(Contraction, {"A": left, "B": right}, {"Y": y}, alpha=alpha)
        return y
    group = heads // kv_heads
    left = b.reshape(left, (batch, kv_heads, group, rows, inner))
    steps = (strides[0], group * columns, *strides[1:]) if strides else None
    wide = b.graph.add_array(b.label, (batch, kv_heads, group, rows, columns), b.graph.dtype(left), steps)
    b.library(Contraction, {"A": left, "B": b.unsqueeze(right, [2])}, {"Y": wide}, alpha=alpha)
    return b.reshape(wide, (batch, heads, rows, columns))


@dataclass(frozen=True)
class Hiding:
    """Which keys a query does not see, and what is added to the scores of the others.

    Query i is at position i + offset among the keys: behind the cached ones or, where ``lengths`` says how many
    keys of a batch entry are real, at their end.
    """

    mask: str | None
    lengths: str | None
    past: Dim
    causal: bool
    left: int
    right: int
    whole_rows: bool  # can all keys of a query be hidden?

    @classmethod
    def of(cls, b: Builder, node: Operator, inputs: Names, scores: str, past: Dim) -> Hiding:
        mask, lengths = values.at(inputs, 3), values.at(inputs, 6)
        trusted = bool(node.attribute(SEES_A_KEY, 0))
        if mask is not None and not trusted:
            mask = _pad(b, mask, b.graph.shape(scores)[-1])
        left, right = node.attribute("left_window_size", -1), node.attribute("right_window_size", -1)
        whole = not trusted and (mask is not None or lengths is not None or max(left, right) >= 0)
        return cls(mask, lengths, past, bool(node.attribute("is_causal", 0)), left, right, whole)

    def apply(self, b: Builder, scores: str) -> str:
        """The scores with the mask added, -inf where a key is hidden."""
        if self.mask is None and self.lengths is None and not self.causal and max(self.left, self.right) < 0:
            return scores
        shape = b.graph.shape(scores)
        reads: dict[str, tuple[str, IndexFunction]] = {"s": (scores, lambda *i: i)}
        if self.lengths is not None:
            reads["n"] = (self.lengths, lambda *i: i[:1])
        if self.mask is not None:
            own = b.graph.shape(self.mask)
            reads["m"] = (self.mask, lambda *i: tuple(0 if n == 1 else p for n, p in zip(own, i[len(i) - len(own) :])))
        boolean = self.mask is not None and types.is_bool(b.graph.dtype(self.mask))

        def fn(
            i: tuple[sympy.Symbol, ...], s: sympy.Expr, n: sympy.Expr | None = None, m: sympy.Expr | None = None
        ) -> sympy.Expr:
            hidden = -scalar.infinity()
            if m is not None:
                s = s + (scalar.select(m, 0, hidden) if boolean else m)  # a score of NaN stays NaN
            for condition in self._conditions(i[2], i[3], shape[2], n):
                s = scalar.select(condition, s, hidden)
            return s

        out = b.graph.add_array("masked_scores", shape, b.graph.dtype(scores))
        b.map(shape, reads, {"out": (out, lambda *i: i)}, fn, label="mask")
        return out

    def _conditions(self, row: sympy.Expr, key: sympy.Expr, rows: Dim, length: sympy.Expr | None) -> list[sympy.Expr]:
        """What must hold for a key to be seen."""
        position = row + self.past if length is None else row + length - rows
        conditions = [scalar.le(key, position)] if self.causal else []
        conditions += [scalar.le(position - key, self.left)] if self.left >= 0 else []
        conditions += [scalar.le(key - position, self.right)] if self.right >= 0 else []
        return conditions + ([scalar.lt(key, length)] if length is not None else [])


def _pad(b: Builder, mask: str, keys: Dim) -> str:
    """The mask with as many columns as there are keys; those that it lacks are hidden."""
    *rest, columns = b.graph.shape(mask)
    if columns == keys:
        return mask
    dtype = b.graph.dtype(mask)
    hidden = b.full([*rest, dim(keys - columns)], False if types.is_bool(dtype) else -math.inf, dtype)
    wide = b.graph.add_array("mask", [*rest, keys], dtype)
    b.graph.add_operator("Concat", [mask, hidden], [wide], {"axis": -1})
    return wide


@supports("Attention")
def why_not_attention(graph: Graph, node: Operator) -> str | None:
    inputs = graph.inputs_of(node)
    mask, past = values.at(inputs, 3), values.at(inputs, 4)
    width = graph.shape(require(inputs, 0))[-1]
    if not isinstance(width, int):
        return f"queries of size {width}; expected one that is known at compile time"
    for cached, position, what in ((past, 1, "keys"), (values.at(inputs, 5), 2, "values")):
        if cached is not None and (differing := _beside(graph, node, require(inputs, position), cached)):
            return f"cached {what} {differing}"
    if mask is None or node.attribute(SEES_A_KEY, 0):
        return None
    keys = graph.shape(require(inputs, 1))[-2] + (graph.shape(past)[2] if past is not None else 0)
    columns = graph.shape(mask)[-1]
    if columns == keys or (isinstance(columns, int) and isinstance(keys, int) and columns < keys):
        return None
    return f"a mask of {columns} columns for {keys} keys; expected at most as many columns as keys"


def _beside(graph: Graph, node: Operator, new: str, cached: str) -> str | None:
    """Why what is cached is not before what is given; one may have a symbol where the other has a number."""
    shape, before = graph.shape(new), graph.shape(cached)
    if len(shape) == 3:
        heads = node.attribute("kv_num_heads")
        shape = (shape[0], heads, shape[1], dim(shape[2] // heads))
    if (*shape[:2], shape[3]) == (*before[:2], before[3]):
        return None
    return f"of shape {before} for new ones of {shape}; expected the same batch, heads and size"
