"""Attention as one operation of a library: where the step takes it, in which types and layouts, and why it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dace
import numpy as np
import pytest

from daceopt import ops
from daceopt.autodiff import differentiate
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import types
from daceopt.ops.core import widening
from daceopt.ops.families.attention import DOMAIN, DROPOUT, SEES_A_KEY
from daceopt.ops.families.fused_attention import GRADIENT, NAME
from daceopt.transformations.coarse.attention_fusing import AttentionFusing
from daceopt.transformations.coarse.attention_lifting import AttentionLifting
from tests.ir.graph_text_checking import read_back

STEP = AttentionFusing()
LENGTH, KEYS = 21, 37
BFLOAT16 = types.BFLOAT16


def attention(
    mask: Any = None,
    kind: Any = dace.bool_,
    dtype: Any = dace.float32,
    shared: int = 4,
    size: int = 8,
    target: str = "cuda",
    length: Any = LENGTH,
    packed: bool = False,
    **attributes: Any,
) -> Graph:
    graph = Graph("attention")
    graph.source.opset[""] = 23
    graph.options = replace(graph.options, target=target)
    shapes = [(2, 4, length, size), (2, shared, KEYS, size), (2, shared, KEYS, 16)]
    if packed:
        shapes = [(b, n, h * d) for b, h, n, d in shapes]
        attributes |= {"q_num_heads": 4, "kv_num_heads": shared}
    names: list[str | None] = [graph.add_input(n, s, dtype) for n, s in zip("qkv", shapes)]
    if not isinstance(length, int):
        graph.symbols[str(length)] = (str(names[0]), 2)
    if mask is not None:
        names.append(graph.add_input("mask", mask, kind))
    y = graph.add_array("y", (2, length, 64) if packed else (2, 4, length, 16), dtype)
    widening.add_operator(graph, "Attention", names, [y], attributes)
    graph.add_output(y)
    return graph


def _kinds(graph: Graph) -> list[str]:
    return [n.op_type for n in graph.operators()]


def _reason(graph: Graph) -> str:
    outcome = STEP.run(graph)
    assert outcome.sites == []
    return "\n".join(outcome.near_misses)


def _feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for name in graph.inputs:
        shape = [e if isinstance(e, int) else LENGTH for e in graph.shape(name)]
        numbers = rng.standard_normal(shape)
        found[name] = numbers > -0.5 if graph.dtype(name) == dace.bool_ else numbers.astype(np.float32)
    return found


def _gradients(graph: Graph, wanted: int) -> tuple[list[np.ndarray], Graph]:
    """The result and the gradients of the first inputs, in float64; the backward graph before it is lowered."""
    ops.lower_all(graph, keep=ops.has_gradient)
    found = differentiate(graph, graph.outputs, graph.inputs[:wanted])
    feeds, backward = _feeds(graph), found.backward.copy()
    ops.lower_all(found.forward)
    results = interpret(found.forward, feeds, dtype=np.float64)
    seeds = {g: np.cos(np.arange(results[n].size)).reshape(results[n].shape) for n, g in found.grad_outputs.items()}
    ops.lower_all(found.backward)
    given = {n: {**feeds, **results, **seeds}[n] for n in found.backward.inputs}
    gradients = interpret(found.backward, given, dtype=np.float64)
    return [results[n] for n in graph.outputs] + [gradients[g] for g in found.grad_inputs.values() if g], backward


N = dace.symbolic.symbol("n", dace.int64)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "open": {"length": N},
    "causal": {"is_causal": 1},
    "scaled": {"scale": 0.3},
    "mask of keys": {"mask": (KEYS,), SEES_A_KEY: 1},
    "full mask": {"mask": (2, 1, LENGTH, KEYS)},
    "added mask": {"mask": (4, LENGTH, KEYS), "kind": dace.float32},
    "one head for all": {"shared": 1},
    "packed": {"packed": True},
    "packed, shared": {"packed": True, "shared": 2, "mask": (LENGTH, KEYS)},
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_all_scores(name: str) -> None:
    graph = attention(**CASES[name])
    fused = graph.copy()
    assert STEP.run(fused).sites == ["Attention"]
    assert _kinds(fused) == [NAME]
    found, backward = _gradients(fused, 3)
    assert _kinds(backward) == [GRADIENT]
    expected, _ = _gradients(graph, 3)
    for ours, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-12)


def test_a_gradient_by_the_mask_takes_all_scores() -> None:
    graph = attention(mask=(2, 1, LENGTH, KEYS), kind=dace.float32)
    fused = graph.copy()
    STEP.run(fused)
    found, backward = _gradients(fused, 4)
    assert GRADIENT not in _kinds(backward)
    for ours, exact in zip(found, _gradients(graph, 4)[0], strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-12)


def test_only_wanted_gradients_are_written() -> None:
    graph = attention()
    STEP.run(graph)
    ops.lower_all(graph, keep=ops.has_gradient)
    found = differentiate(graph, graph.outputs, graph.inputs[1:2])
    ops.lower_all(found.backward)
    (node,) = found.backward.nodes()
    assert list(found.backward.writes(node)) == ["dK"]


def test_nodes_are_text_that_reads_back() -> None:
    graph = attention(is_causal=1, scale=0.3)
    STEP.run(graph)
    ops.lower_all(graph)
    read_back(graph)


def test_narrow_operands_are_read_as_they_were() -> None:
    for dtype in types.HALVES:
        graph = attention(dtype=dtype, mask=(LENGTH, KEYS), kind=dtype)
        assert STEP.run(graph).sites
        graph.prune()
        assert _kinds(graph) == [NAME]
        (node,) = graph.operators()
        assert graph.operands(node, 4) == graph.inputs and graph.dtype(graph.result(node, 0)) == dtype


def test_heads_are_left_side_by_side_and_moved_in_their_own_type() -> None:
    graph = attention(dtype=BFLOAT16)
    (y,) = graph.outputs
    graph.outputs.clear()
    moved = graph.add_array("moved", (2, LENGTH, 4, 16), BFLOAT16)
    widening.add_operator(graph, "Transpose", [y], [moved], {"perm": [0, 2, 1, 3]})
    graph.add_output(moved)
    widening.settle(graph)
    assert "Cast" in _kinds(graph)
    STEP.run(graph)
    graph.prune()
    assert _kinds(graph) == [NAME, "Transpose"]
    fused = graph.operators()[0]
    assert graph.strides(graph.result(fused, 0)) == (LENGTH * 64, 16, 64, 1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "host": ({"target": "cpu"}, "torch_attention: it works on arrays of cuda; these live on cpu"),
    "float64": ({"dtype": dace.float64}, "element types ['float64']; expected one of float32, float16, bfloat16"),
    "size": ({"size": 10}, "heads of size 10, 16; torch's kernels take multiples of 4"),
    "narrow size": ({"size": 12, "dtype": BFLOAT16}, "heads of size 12, 16; torch's kernels take multiples of 8"),
    "both masks": ({"mask": (LENGTH, KEYS), "is_causal": 1}, "a mask beside a causal one"),
    "short mask": ({"mask": (LENGTH, 5)}, "a mask of shape (21, 5) for scores of shape"),
    "wide mask": (
        {"mask": (LENGTH, KEYS), "dtype": BFLOAT16, "kind": dace.float32},
        "a mask of float32, which factors of another type would round",
    ),
    "packed mask": (
        {"mask": (LENGTH, KEYS), "kind": dace.float32, "packed": True},
        "expected bool or, beside four axes",
    ),
    "softcap": ({"softcap": 2.0}, "softcap of Attention"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_products_and_kernels_has_its_reason(name: str) -> None:
    settings, reason = REFUSED[name]
    assert reason in _reason(attention(**settings))


@pytest.mark.parametrize(("ratio", "training", "taken"), [(0.3, True, False), (0.3, False, True), (0.0, True, True)])
def test_random_weights_stay_those_of_all_targets(ratio: float, training: bool, taken: bool) -> None:
    graph = attention(scale=0.4)
    (node,) = graph.operators()
    inputs, (y,) = graph.inputs_of(node)[:3], graph.outputs_of(node)
    graph.remove(node)
    flags = graph.add_constant("ratio", np.float32(ratio)), graph.add_constant("training", np.asarray(training))
    graph.add_operator(DROPOUT, [*inputs, None, *flags], [y], {"scale": 0.4, "stream": 7}, DOMAIN)
    if taken:
        assert STEP.run(graph).sites == [DROPOUT]
    else:
        assert "weights are dropped at random, the same ones on each target" in _reason(graph)


# -------------------------------------------------------------------- narrow products around a wide softmax


def _spelled(factor: Any = BFLOAT16, narrowed: Any = BFLOAT16, mask: bool = False) -> Graph:
    """What autocast makes of softmax(q @ k' / 2 + mask) @ v."""
    graph = Graph("spelled")
    graph.source.opset[""] = 23
    graph.options = replace(graph.options, target="cuda")
    q, k, v = (graph.add_input(n, (2, 4, 8, 16), factor) for n in "qkv")
    scores, wide = (2, 4, 8, 8), dace.float32

    def made(kind: str, inputs: list[str], shape: Any, dtype: Any, **attributes: Any) -> str:
        out = graph.add_array(kind.lower(), shape, dtype)
        graph.add_operator(kind, inputs, [out], attributes)
        return out

    def cast(x: str, dtype: Any) -> str:
        return made("Cast", [x], graph.shape(x), dtype, to=types.to_onnx(dtype))

    turned = made("Transpose", [k], (2, 4, 16, 8), factor, perm=[0, 1, 3, 2])
    s = cast(made("MatMul", [q, turned], scores, factor), wide)
    s = made("Div", [s, graph.add_constant("two", np.float32(2))], scores, wide)
    if mask:
        s = made("Add", [s, cast(graph.add_input("mask", (8, 8), factor), wide)], scores, wide)
    weights = cast(made("Softmax", [s], scores, wide, axis=-1), narrowed)
    graph.add_output(made("MatMul", [weights, v], (2, 4, 8, 16), factor))
    return graph


@pytest.mark.parametrize("factor", types.HALVES, ids=types.name_of)
@pytest.mark.parametrize("mask", [False, True])
def test_attention_of_narrow_products_is_lifted_and_fused(mask: bool, factor: Any) -> None:
    graph = _spelled(factor, factor, mask)
    before, feeds = graph.copy(), _feeds(graph)
    assert len(AttentionLifting(narrow=True).run(graph).sites) == 1
    assert STEP.run(graph).sites == ["Attention"]
    graph.prune()
    assert _kinds(graph) == [NAME]
    for g in (before, graph):
        ops.lower_all(g)
    (exact,), (ours,) = (interpret(g, feeds, dtype=np.float64).values() for g in (before, graph))
    np.testing.assert_allclose(ours, exact, rtol=2e-2, atol=2e-2)


def test_it_is_no_attention_of_float32() -> None:
    """Where no library takes it as it is, its products stay narrow."""
    outcome = AttentionLifting().run(_spelled())
    assert outcome.sites == [] and "its products are of other types than its softmax" in "\n".join(outcome.near_misses)
    outcome = AttentionLifting(narrow=True).run(_spelled(factor=dace.float32, narrowed=dace.float32))
    assert "expected float16 or bfloat16 around a softmax of float32" in "\n".join(outcome.near_misses)
