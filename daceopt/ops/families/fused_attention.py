"""Attention that stays one node for a library, in both directions: ``FusedAttention`` in domain ``daceopt``.

Its second output is of each row the logarithm of the sum of its scores' exponentials, by which the backward has the
weights again (Dao et al., FlashAttention, NeurIPS 2022). The step ``attention-fusing`` decides where it is.
"""

from __future__ import annotations

from typing import Any

import dace

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import all_required, require
from daceopt.ir.nodes.attention_calls import AttentionBackward, AttentionCall, AttentionForward, pad_rows
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.types import DType
from daceopt.ops.core import values
from daceopt.ops.core.registry import Names, Operator, gradient, keeps, lowering, supports, without_gradient
from daceopt.ops.families.attention import SEES_A_KEY, apart
from daceopt.ops.families.tiled_attention_gradient import by_all_scores

DOMAIN, NAME, GRADIENT = "daceopt", "FusedAttention", "FusedAttentionGradient"
FUSED_TYPES = (dace.float32, *types.HALVES)
_GIVEN = ("Q", "K", "V", "Mask", "Y", "Lse", "dY")  # inputs of the gradient


def attributes_of(node: Operator) -> dict[str, Any]:
    """What nodes are made of: as properties of an AttentionCall."""
    return {
        "scale": float(node.attribute("scale")),
        "causal": bool(node.attribute("is_causal", 0)),
        "heads": int(node.attribute("q_num_heads", 0)),
        "kv_heads": int(node.attribute("kv_num_heads", 0)),
    }


def lay_out(graph: Graph, name: str) -> Shape:
    """Strides with the heads of a position side by side: in the order in which kernels write, and heads are joined."""
    shape = graph.shape(name)
    if len(shape) != 4:
        return graph.strides(name)
    _, heads, length, size = shape
    return (dim(length * heads * size), size, dim(heads * size), 1)


@supports(NAME, domain=DOMAIN)
def why_not_whole(graph: Graph, node: Operator) -> str | None:
    """Why operands are none of one node. Of four axes, or packed with the numbers of heads as attributes."""
    inputs = graph.inputs_of(node)
    names = all_required(inputs, 3)
    dtypes = {graph.dtype(n) for n in names}
    if len(dtypes) != 1 or not dtypes <= set(FUSED_TYPES):
        listed = ", ".join(types.name_of(t) for t in FUSED_TYPES)
        return f"element types {sorted(map(types.name_of, dtypes))}; expected one of {listed}"
    shapes = apart(graph, node)
    return _why_not_shapes(shapes) or _why_not_mask(graph, node, values.at(inputs, 3), shapes)


def _why_not_shapes(shapes: list[Shape]) -> str | None:
    if any(len(s) != 4 for s in shapes) or len({s[0] for s in shapes}) != 1:
        return f"queries, keys and values of shapes {shapes}; expected batch, heads, length and size"
    queries, keys, others = (s[1] for s in shapes)
    shared = isinstance(queries, int) and isinstance(keys, int) and keys > 0 and int(queries) % int(keys) == 0
    if keys != others or not (queries == keys or shared):
        return f"{queries} heads of queries, {keys} of keys and {others} of values; expected ones that others share"
    if any(0 in s for s in shapes) or not all(isinstance(s[3], int) for s in shapes) or shapes[0][3] != shapes[1][3]:
        return f"shapes {shapes}; expected elements, and sizes of heads that are known at compile time"
    return None if shapes[1][2] == shapes[2][2] else f"{shapes[1][2]} keys and {shapes[2][2]} values"


def _why_not_mask(graph: Graph, node: Operator, mask: str | None, shapes: list[Shape]) -> str | None:
    """Without the promise that a row sees a key ONNX takes the columns that a mask lacks for hidden."""
    if mask is None:
        return None
    if node.attribute("is_causal", 0):
        return "a mask beside a causal one"
    own, full = graph.shape(mask), (*shapes[0][:3], shapes[1][2])
    fits = len(own) <= 4 and all(n in (1, m) for n, m in zip(reversed(own), reversed(full)))
    if not fits or not (node.attribute(SEES_A_KEY, 0) or own[-1:] == full[-1:]):
        return f"a mask of shape {own} for scores of shape {full}"
    dtype, factors = graph.dtype(mask), graph.dtype(graph.operand(node, 0))
    if types.is_bool(dtype) or (dtype == factors and len(graph.shape(graph.operand(node, 0))) == 4):
        return None
    return f"a mask of {types.name_of(dtype)}; expected bool or, beside four axes, {types.name_of(factors)}"


@keeps(NAME, domain=DOMAIN)
def row_sums(graph: Graph, node: Operator) -> dict[int, tuple[Shape, DType]]:
    """The logarithms of rows' sums."""
    batch, heads, rows = _rows(graph.shape(graph.operand(node, 0)), node)
    return {1: ((batch, heads, pad_rows(rows)), dace.float32)}


def _rows(shape: Shape, node: Operator) -> tuple[Dim, Dim, Dim]:
    return (
        (shape[0], int(node.attribute("q_num_heads")), shape[1]) if len(shape) == 3 else (shape[0], shape[1], shape[2])
    )


@lowering(NAME, domain=DOMAIN, types=FUSED_TYPES)
def fused_attention(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """softmax(scale Q K' + mask) V."""
    names = [*inputs, None][:4]
    _call(b, AttentionForward, node, dict(zip(_GIVEN, names)), dict(zip(("Y", "Lse"), outputs)))


@gradient(NAME, domain=DOMAIN)
def fused_attention_gradient(
    b: Builder, node: Operator, inputs: Names, outputs: Names, grads_out: Names, needs_grad: list[bool]
) -> Names:
    """By one node; a gradient by what was added to the scores is as large as they are, and takes all of them."""
    dy, y = grads_out[0], require(outputs, 0)
    if dy is None:
        return [None] * len(inputs)
    if len(needs_grad) > 3 and needs_grad[3]:
        return by_all_scores(b, node, inputs, y, dy)
    gradients: Names = [_like(b, n) if w else None for n, w in zip(all_required(inputs, 3), needs_grad)]
    operands = [*all_required(inputs, 3), values.at(inputs, 3), y, require(outputs, 1), dy]
    b.graph.add_operator(GRADIENT, operands, gradients, node.attributes, DOMAIN)
    return [*gradients, *[None] * (len(inputs) - len(gradients))]


def _like(b: Builder, name: str) -> str:
    return b.graph.add_array("attention_grad", b.graph.shape(name), b.graph.dtype(name))


@lowering(GRADIENT, domain=DOMAIN, types=FUSED_TYPES)
def lowered_gradient(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """Inputs are queries, keys, values, a mask or None, the result, rows' sums, and the gradient of the result."""
    _call(b, AttentionBackward, node, dict(zip(_GIVEN, inputs)), dict(zip(("dQ", "dK", "dV"), outputs)))


without_gradient(GRADIENT, domain=DOMAIN)  # gradients of gradients are captured as products and softmaxes


def _call(
    b: Builder,
    kind: type[AttentionCall],
    node: Operator,
    operands: dict[str, str | None],
    results: dict[str, str | None],
) -> None:
    reads = {c: n for c, n in operands.items() if n is not None}
    writes = {c: n for c, n in results.items() if n is not None}
    call = kind(b.label, inputs=tuple(reads), outputs=tuple(writes), **attributes_of(node))
    b.attach(call, reads, writes)
