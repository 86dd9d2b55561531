"""Gradients of attention over tiles: those of its products and softmax, without an array of all scores."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy

from daceopt import ops
from daceopt.autodiff import differentiate
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.scalar import scalar
from daceopt.ir.schedule import schedule_text
from daceopt.ops.families import tiled_attention_gradient as family
from daceopt.ops.families.attention import DOMAIN, DROPOUT, SEES_A_KEY
from daceopt.transformations.coarse.attention_tiling import AttentionTiling
from tests.transformations.lowered import schedule_tiles

LENGTH, KEYS, SIZE, WIDTH = 21, 37, 8, 9
STEP = AttentionTiling(rows=16, keys=32)
N = dace.symbolic.symbol("n", dace.int64)


def _attention(
    length: Any = LENGTH,
    mask: Any = None,
    dropout: float = 0.0,
    shared: int = 3,
    kind: Any = dace.bool_,
    **attributes: Any,
) -> Graph:
    graph = Graph("attention")
    graph.source.opset[""] = 23
    shapes = [(2, 3, length, SIZE), (2, shared, KEYS, SIZE), (2, shared, KEYS, WIDTH)]
    names: list[str | None] = [graph.add_input(n, s, dace.float32) for n, s in zip("qkv", shapes)]
    if not isinstance(length, int):
        graph.symbols[str(length)] = (str(names[0]), 2)
    if mask is not None:
        names.append(graph.add_input("mask", mask, kind))
    y = graph.add_array("y", (2, 3, length, WIDTH), dace.float32)
    if dropout:
        ratio = graph.add_constant("ratio", np.float32(dropout))
        training = graph.add_constant("training", np.asarray(True))
        operands = [*names, *[None] * (4 - len(names)), ratio, training]
        graph.add_operator(DROPOUT, operands, [y], {**attributes, "stream": 77}, DOMAIN)
    else:
        graph.add_operator("Attention", names, [y], attributes)
    graph.add_output(y)
    return graph


def _feeds(graph: Graph, names: list[str], rows: int = LENGTH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(names))
    found = {}
    for name in names:
        shape = [e if isinstance(e, int) else rows for e in graph.shape(name)]
        seen = rng.random(shape) > 0.3
        found[name] = seen if graph.dtype(name) == dace.bool_ else rng.standard_normal(shape).astype(np.float32)
    return found


def _gradients(graph: Graph, wanted: int, hidden: Any = None) -> tuple[list[np.ndarray], Graph]:
    """Of the first inputs, in float64, and the backward graph as it is before operators are lowered."""
    ops.lower_all(graph, keep=ops.has_gradient)
    found = differentiate(graph, graph.outputs, graph.inputs[:wanted])
    feeds = _feeds(graph, graph.inputs)
    if hidden is not None:
        feeds[graph.inputs[3]][hidden] = False
    feeds["rng_seed"] = np.asarray([5])
    with np.errstate(all="ignore"):
        results = interpret(_lowered(found.forward), feeds, dtype=np.float64)
        seeds = {g: np.cos(np.arange(results[n].size)).reshape(results[n].shape) for n, g in found.grad_outputs.items()}
        backward = _lowered(found.backward)
        given = {n: {**feeds, **results, **seeds}[n] for n in backward.inputs} | {"rng_seed": feeds["rng_seed"]}
        gradients = interpret(backward, given, dtype=np.float64)
    return [gradients[g] for g in found.grad_inputs.values() if g is not None], found.backward


def _lowered(graph: Graph) -> Graph:
    graph = graph.copy()
    ops.lower_all(graph)
    return graph


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole tiles": {"length": 32},
    "one query": {"length": 1},
    "open": {"length": N},
    "causal": {"is_causal": 1},
    "scaled": {"scale": 0.3},
    "mask of keys": {"mask": (KEYS,), SEES_A_KEY: 1},
    "full mask": {"mask": (2, 1, LENGTH, KEYS)},
    "dropped": {"dropout": 0.4, "scale": 0.4, SEES_A_KEY: 1},
    "dropped, causal": {"dropout": 0.2, "is_causal": 1, "scale": 0.4, SEES_A_KEY: 1},
    "one head for all": {"shared": 1},
    "one head for all, dropped": {"shared": 1, "dropout": 0.4, "scale": 0.4, SEES_A_KEY: 1},
}


@pytest.fixture(autouse=True, params=[(16, 0), (16, 64)], ids=["tiles", "panels"])
def panels(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Queries in a panel, and the most keys there."""
    monkeypatch.setattr(family, "_TILE", (16, 16))
    monkeypatch.setattr(family, "_PANEL", request.param)
    return request.param


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_all_scores(name: str) -> None:
    graph = _attention(**CASES[name])
    tiled = graph.copy()
    assert STEP.run(tiled).sites
    found, backward = _gradients(tiled, 3)
    assert [n.op_type for n in backward.operators()] == [family.GRADIENT]
    expected, _ = _gradients(graph, 3)
    for ours, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shared", [3, 1])
def test_a_gradient_by_the_mask_takes_all_scores(shared: int) -> None:
    graph = _attention(mask=(2, 1, LENGTH, KEYS), shared=shared, kind=dace.float32)
    tiled = graph.copy()
    assert STEP.run(tiled).sites
    found, backward = _gradients(tiled, 4)
    assert family.GRADIENT not in [getattr(n, "op_type", "") for n in backward.nodes()]
    expected, _ = _gradients(graph, 4)
    for ours, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-12)


def test_rows_that_see_nothing_have_no_gradient() -> None:
    """Nor do they spoil those of keys and values."""
    graph = _attention(mask=(2, 1, LENGTH, KEYS))
    tiled = graph.copy()
    STEP.run(tiled)
    hidden = (slice(None), slice(None), slice(3, 6))
    found, _ = _gradients(tiled, 3, hidden)
    expected, _ = _gradients(graph, 3, hidden)
    for ours, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-12)
    assert not found[0][:, :, 3:6].any()


@pytest.mark.parametrize("wanted", [1, 2])
def test_what_is_not_wanted_is_not_computed(wanted: int) -> None:
    graph = _attention()
    STEP.run(graph)
    _, backward = _gradients(graph, wanted)
    (node,) = backward.operators()
    assert len([n for n in backward.outputs_of(node) if n is not None]) == wanted


def test_no_scores_stand_in_memory(panels: tuple[int, int]) -> None:
    """Nor does anything else that is larger than what is given; products and tiles that are turned round are calls."""
    graph = _attention(length=300)
    STEP.run(graph)
    _, backward = _gradients(graph, 3)
    lowered = _lowered(backward)
    assert max(int(np.prod(lowered.shape(n))) for n in lowered.arrays()) <= 2 * 3 * 300 * WIDTH
    schedule_tiles(lowered)
    kernels = [e for e in lowered.kernels() if e.kernel.serial]
    texts = [schedule_text.text(e.tree) for e in kernels]
    assert [t.count("call product:") for t in texts] == ([5] if panels[1] else [3, 4])
    assert [t.count("call transposition:") for t in texts] == ([3] if panels[1] else [2, 2])


@pytest.mark.parametrize("kind", [dace.bool_, dace.float32])
def test_masks_do_not_keep_exponentials_from_vectors(panels: tuple[int, int], kind: Any) -> None:
    """Where keys are the near side, an element of the mask for each query would stand a row apart from the next."""
    graph = _attention(mask=(LENGTH, KEYS), kind=kind)
    STEP.run(graph)
    lowered = _lowered(_gradients(graph, 3)[1])
    stages = [s for e in lowered.kernels() for s in e.kernel.stages]
    found = [s for s in stages if any(a.expr.has(scalar.exp_weight) for a in s.assignments)]
    assert found
    for stage in found:
        given = [a for a in stage.reads.values() if a.array in lowered.inputs]
        assert all(a.index[-1].coeff(stage.params[-1]) != 0 for a in given if stage.params[-1] in _loops(a))


def _loops(access: Any) -> set[Any]:
    return {p for e in access.index for p in sympy.sympify(e).free_symbols}
