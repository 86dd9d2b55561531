"""Products, einsum and attention."""

from __future__ import annotations

import dace
import numpy as np
import pytest
import torch

from daceopt import ops
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from tests.numerics import assert_within_rounding
from tests.ops.single import check, lowered, single


def data(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng((seed, *shape)).normal(size=shape) * 2).astype(dtype)


SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
]


@pytest.mark.parametrize("left, right", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    check("MatMul", [data(*left, dtype=dtype), data(*right, dtype=dtype, seed=1)])


@pytest.mark.parametrize("trans_a, trans_b", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("bias", [None, (5,), (3, 1), (3, 5), (1,), ()])
def test_gemm(trans_a: int, trans_b: int, bias: tuple[int, ...] | None) -> None:
    a, b = data(*((4, 3) if trans_a else (3, 4))), data(*((5, 4) if trans_b else (4, 5)))
    c = None if bias is None else data(*bias)
    check("Gemm", [a, b, c], transA=trans_a, transB=trans_b)
    check("Gemm", [a, b, c], transA=trans_a, transB=trans_b, alpha=0.5, beta=0.25)


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bij,bjk->bik", (2, 2, 3), (2, 3, 4)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("ij,kj", (2, 3), (4, 3)),
    ("abc,cd->abd", (2, 3, 4), (4, 5)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("ij,ij->j", (2, 3), (2, 3)),
]


@pytest.mark.parametrize("equation, left, right", EQUATIONS)
def test_einsum(equation: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check("Einsum", [data(*left), data(*right, seed=1)], equation=equation)


@pytest.mark.parametrize("equation", ["ij->ji", "ij->i", "ij->", "ij"])
def test_einsum_of_one(equation: str) -> None:
    check("Einsum", [data(2, 3)], equation=equation)


def test_einsum_of_three() -> None:
    check("Einsum", [data(2, 3), data(3, 4), data(4, 5)], equation="ij,jk,kl->il")


@pytest.mark.parametrize("equation, shape", [("ii->i", (3, 3)), ("...ii->...i", (2, 3, 3)), ("iji->j", (3, 2, 3))])
def test_einsum_of_a_diagonal(equation: str, shape: tuple[int, ...]) -> None:
    check("Einsum", [data(*shape)], equation=equation)
    check("Einsum", [data(*shape), data(2, 3, seed=1)], equation=f"{equation.partition('->')[0]},ab->ab")


def test_einsum_of_a_diagonal_that_is_none_says_why_not() -> None:
    graph, _ = single("Einsum", [data(3, 4)], like=[data(3)], equation="ii->i")
    assert "repeats a label" in str(ops.why_unsupported(graph, graph.operators()[0]))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: object) -> torch.Tensor:
    double = [torch.from_numpy(x).double() for x in (q, k, v)]
    options = {n: torch.from_numpy(o) if isinstance(o, np.ndarray) else o for n, o in options.items()}
    return torch.nn.functional.scaled_dot_product_attention(*double, **options)  # type: ignore[arg-type]


def run_attention(*inputs: np.ndarray | None, **attributes: object) -> np.ndarray:
    graph, feeds = single("Attention", list(inputs), **attributes)
    return interpret(lowered(graph), feeds)[graph.outputs[0]]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention(kv_heads: int, is_causal: int) -> None:
    q, k, v = data(2, 4, 5, 8), data(2, kv_heads, 6, 8), data(2, kv_heads, 6, 8, seed=1)
    ours = run_attention(q, k, v, is_causal=is_causal)
    expected = attend(q, k, v, is_causal=bool(is_causal), enable_gqa=True)
    assert_within_rounding(ours, expected, ulps=40)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_with_packed_heads(kv_heads: int) -> None:
    q, k, v = data(2, 5, 32), data(2, 6, 8 * kv_heads), data(2, 6, 8 * kv_heads, seed=1)
    ours = run_attention(q, k, v, q_num_heads=4, kv_num_heads=kv_heads)
    heads = [x.reshape(2, x.shape[1], -1, 8).swapaxes(1, 2) for x in (q, k, v)]
    expected = attend(*heads, enable_gqa=True).transpose(1, 2).reshape(2, 5, 32)
    assert_within_rounding(ours, expected, ulps=40)


def test_cached_heads_of_open_number_are_refused() -> None:
    """They may be others than the attribute says."""
    heads = dace.symbolic.symbol("s0", dace.int64)
    graph = Graph("cached")
    q, k, v = (graph.add_input(n, (1, 2, 12), dace.float32) for n in ("q", "k", "v"))
    cached = [graph.add_input(n, (1, heads, 3, 3), dace.float32) for n in ("past_k", "past_v")]
    graph.symbols["s0"] = (cached[0], 1)
    y = graph.add_array("y", (1, 2, 12), dace.float32)
    graph.add_operator("Attention", [q, k, v, None, *cached], [y], {"q_num_heads": 4, "kv_num_heads": 4})
    graph.add_output(y)
    with pytest.raises(Unsupported, match=r"cached keys of shape \(1, s0, 3, 3\).*expected the same batch, heads"):
        ops.lower_all(graph)


@pytest.mark.parametrize("shape", [(5, 6), (2, 1, 5, 6), (2, 4, 5, 6)])
@pytest.mark.parametrize("boolean", [False, True])
def test_attention_mask(shape: tuple[int, ...], boolean: bool) -> None:
    q, k, v = data(2, 4, 5, 8), data(2, 4, 6, 8), data(2, 4, 6, 8, seed=1)
    mask = data(*shape)
    mask[..., 0] = 1
    bits = mask > 0
    ours = run_attention(q, k, v, bits if boolean else mask, scale=0.3)
    expected = attend(q, k, v, attn_mask=bits if boolean else mask.astype(np.float64), scale=0.3)
    assert_within_rounding(ours, expected, ulps=40)


def test_attention_with_a_cache() -> None:
    q, k, v = data(1, 2, 3, 4), data(1, 2, 3, 4, seed=1), data(1, 2, 3, 4, seed=2)
    past = data(1, 2, 5, 4, seed=3), data(1, 2, 5, 4, seed=4)
    check("Attention", [q, k, v, None, *past], outputs=3)


def _keys_seen(*rows: str) -> np.ndarray:
    """A boolean mask, one text per query: x is seen."""
    return np.array([[c == "x" for c in row] for row in rows])


_MASK = _keys_seen("xx..", "....", "...x")
_SHORT = _keys_seen("x..", "xx.", "x.x")
_BIAS = np.where(_MASK, np.float32(0.5), np.float32(-np.inf))


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("mask", [_MASK, _SHORT, _BIAS])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_shows_its_stages(mode: int, mask: np.ndarray, causal: int) -> None:
    """The second query sees no key at all: its result is zero."""
    inputs = [data(2, 2, 3, 4), data(2, 2, 4, 4), data(2, 2, 4, 4, seed=1), mask]
    check("Attention", inputs, outputs=4, opset=24, is_causal=causal, qk_matmul_output_mode=mode)


@pytest.mark.parametrize(
    "attributes", [{"softcap": 0.7}, {"left_window_size": 1}, {"right_window_size": 0, "left_window_size": 2}]
)
@pytest.mark.parametrize("lengths", [None, (3, 5)])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_windows_lengths_and_softcap(attributes: dict, lengths: tuple[int, ...] | None, causal: int) -> None:
    inputs = [data(2, 2, 3, 4), data(2, 2, 5, 4), data(2, 2, 5, 4, seed=1)]
    if lengths is not None:
        inputs += [None, None, None, np.array(lengths, np.int64)]
    check("Attention", inputs, opset=25, is_causal=causal, **attributes)


def test_attention_with_a_wide_softmax() -> None:
    check("Attention", [data(1, 2, 3, 4)] * 3, softmax_precision=11)


def test_attention_with_a_mask_of_too_many_columns_says_why_not() -> None:
    inputs = [data(1, 2, 3, 4), data(1, 2, 3, 4), data(1, 2, 3, 4), data(3, 5)]
    graph, _ = single("Attention", inputs, like=[data(1, 2, 3, 4)])
    assert "5 columns for 3 keys" in str(ops.why_unsupported(graph, graph.operators()[0]))
