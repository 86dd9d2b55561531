"""Attention over tiles of keys: what it computes, in both directions, whatever the sizes, masks and infinities."""

from __future__ import annotations

import re
from typing import Any

import dace
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from daceopt import ops, optimized_module, recipes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.schedule import schedule_text
from daceopt.ops.families.attention import SEES_A_KEY
from daceopt.transformations.coarse.attention_tiling import AttentionTiling
from daceopt.transformations.hardware.threading import Threading
from tests.ir.graph_text_checking import read_back
from tests.ir.isl_checking import assert_agrees
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import schedule_tiles

STEP = AttentionTiling(rows=16, keys=32)
RECIPE = recipes.get("cpu").after("attention-lifting", STEP)


def attention(
    length: Any = 21,
    keys: int = 70,
    size: int = 8,
    mask: Any = None,
    heads: tuple[int, int] = (3, 3),
    packed: bool = False,
    **attributes: Any,
) -> Graph:
    graph = Graph("attention")
    graph.source.opset[""] = 23
    shapes = [(2, heads[0], length, 8), (2, heads[1], keys, 8), (2, heads[1], keys, 9), (2, heads[0], length, 9)]
    if packed:
        shapes = [(batch, rows, own * width) for batch, own, rows, width in shapes]
        attributes |= {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    names: list[str | None] = [graph.add_input(n, s, dace.float32) for n, s in zip("qkv", shapes)]
    if not isinstance(length, int):
        graph.symbols[str(length)] = (str(names[0]), 1 if packed else 2)
    if mask is not None:
        names.append(graph.add_input("mask", mask, dace.float32))
    y = graph.add_array("y", shapes[3], dace.float32)
    graph.add_operator("Attention", names, [y], attributes)
    graph.add_output(y)
    return graph


def _feeds(graph: Graph, rows: int = 37) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {n: [e if isinstance(e, int) else rows for e in graph.shape(n)] for n in graph.inputs}
    return {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}


def _value(graph: Graph, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Of the lowered graph: ONNX's own reference has another idea of rows that see nothing."""
    graph = graph.copy()
    ops.lower_all(graph)
    with np.errstate(all="ignore"):
        return next(iter(interpret(graph, feeds, dtype=np.float64).values()))


def _tiled(graph: Graph, step: AttentionTiling = STEP) -> Graph:
    """Lowered and scheduled, without an operator in between."""
    assert step.run(graph).sites == ["Attention"]
    ops.lower_all(graph)
    graph.prune()
    assert "attention" in schedule_tiles(graph)
    Threading().run(graph)
    graph.validate()
    return graph


SIZES: dict[str, dict[str, Any]] = {
    "partial tiles": {},
    "whole tiles": {"length": 32, "keys": 64},
    "less than a tile": {"length": 5, "keys": 3},
    "one query": {"length": 1},
    "one key": {"keys": 1},
    "a size": {"length": dace.symbolic.symbol("n", dace.int64)},
    "causal": {"is_causal": 1},
    "causal, few queries": {"is_causal": 1, "length": 40, "keys": 33},
    "causal, a size": {"is_causal": 1, "length": dace.symbolic.symbol("n", dace.int64)},
    "causal, many queries": {"is_causal": 1, "length": 100, "keys": 130},
    "scaled": {"scale": 0.3},
    "row mask": {"mask": (70,)},
    "full mask": {"mask": (2, 1, 21, 70)},
    "mask of rows": {"mask": (21, 1), SEES_A_KEY: 1},
    "shared heads": {"heads": (4, 2)},
    "one head for all, causal": {"heads": (3, 1), "is_causal": 1},
    "shared heads, full mask": {"heads": (6, 2), "mask": (2, 6, 21, 70)},
    "packed": {"packed": True},
    "packed, shared heads, a size": {"packed": True, "heads": (4, 2), "length": dace.symbolic.symbol("n", dace.int64)},
    "packed, full mask": {"packed": True, "mask": (2, 3, 21, 70)},
}


@pytest.mark.share(2)
@pytest.mark.parametrize("step", [STEP, AttentionTiling(rows=16, keys=8)], ids=["wide", "high"])
@pytest.mark.parametrize("name", SIZES)
def test_it_computes_the_same(name: str, step: AttentionTiling) -> None:
    before = attention(**SIZES[name])
    feeds = _feeds(before)
    after = _tiled(before.copy(), step)
    np.testing.assert_allclose(_value(after, feeds), _value(before, feeds), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("trusted", [0, 1])
def test_hidden_keys_and_hidden_rows(trusted: int) -> None:
    """Whole tiles of -inf come first; a row of nothing else is 0, or NaN as in a plain softmax."""
    before = attention(mask=(2, 1, 21, 70), **{SEES_A_KEY: trusted})
    feeds = _feeds(before)
    mask = feeds[before.inputs[3]]
    mask[:, :, 2:9, :40] = -np.inf
    mask[0, 0, 4] = -np.inf
    after = _value(_tiled(before.copy()), feeds)
    np.testing.assert_allclose(after, _value(before, feeds), rtol=1e-11, atol=1e-13)
    hidden = after[0, :, 4]
    assert np.isnan(hidden).all() if trusted else not hidden.any()


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_scores_that_are_no_numbers_spoil_their_row_only(special: float) -> None:
    before = attention()
    feeds = _feeds(before)
    feeds[before.inputs[0]][1, 2, 7] = special
    np.testing.assert_allclose(_value(_tiled(before.copy()), feeds), _value(before, feeds), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("packed", [False, True])
def test_no_scores_stand_in_memory(packed: bool) -> None:
    graph = _tiled(attention(length=500, keys=700, packed=packed))
    largest = max(int(np.prod(graph.shape(n))) for n in graph.arrays())
    assert largest <= 2 * 3 * 700 * 9
    (entry,) = (e for e in graph.kernels() if e.kernel.serial)
    kernel = entry.kernel
    assert {n.rsplit("_", 1)[0] for n in kernel.kept_locals()} == {"top", "total", "sum"}
    shown = schedule_text.text(entry.tree)
    assert shown.count("call product:") == 2
    assert "parallel for i2" in shown
    assert "vector for i5 < 32, 700 - 32*i3" in shown


def test_tiles_that_no_query_sees_are_left_out() -> None:
    """Where a tile has as many queries as keys, or some times as many."""
    graph = _tiled(attention(is_causal=1, length=96, keys=96), AttentionTiling(rows=32, keys=16))
    (entry,) = (e for e in graph.kernels() if e.kernel.serial)
    assert "for i3 < 6, 2*i2 + 2:" in schedule_text.text(entry.tree)
    assert_agrees(graph, entry.kernel)
    read_back(graph)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"softcap": 2.0}, "softcap of Attention"),
        ({"left_window_size": 3}, "left_window_size of Attention"),
        ({"heads": (4, 3)}, "expected four dimensions, and heads that others share"),
        ({"mask": (21, 1)}, r"a mask of shape \(21, 1\)"),
        ({"mask": (2, 1, 21, 50)}, r"a mask of shape \(2, 1, 21, 50\) for scores of shape \(2, 3, 21, 70\)"),
    ],
)
def test_what_has_no_tiled_form(given: dict[str, Any], reason: str) -> None:
    outcome = STEP.run(attention(**given))
    assert outcome.sites == []
    (miss,) = outcome.near_misses
    assert re.search(reason, miss), miss


# ---------------------------------------------------------------- compiled, in both directions


class Layer(nn.Module):
    """Self-attention; ``plain`` spells it out, so that it has to be lifted first."""

    def __init__(self, plain: bool = False):
        super().__init__()
        self.project, self.plain = nn.Linear(24, 72), plain

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 3, width // 3).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        if self.plain:
            weights = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, dim=-1)
            return weights @ v
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _masks(length: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(3)
    added = torch.randn(length, length, generator=generator)
    added[3, :] = -torch.inf
    added[:, 40:] = -torch.inf
    seen = torch.rand(2, 1, length, length, generator=generator) > 0.4
    seen[0, 0, 5] = False
    return {"none": None, "added": added, "boolean": seen}


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("mask", "training"), [("plain", True), ("none", False), ("added", True), ("boolean", True), ("plain", False)]
)
def test_compiled(mask: str, training: bool) -> None:
    torch.manual_seed(0)
    net = Layer(mask == "plain")
    x = torch.randn(2, 50, 24, requires_grad=training)
    bias = _masks(50).get(mask)
    results = {}
    for dtype in (torch.float64, torch.float32):
        copy = Layer(net.plain).to(dtype)
        copy.load_state_dict({n: p.to(dtype) for n, p in net.state_dict().items()})
        results[dtype] = _run(copy, x.detach().to(dtype), bias, training)
    ours = optimized_module(net, recipe=RECIPE, verify="numerics", fallback="raise")
    found = _run(ours, x.detach(), bias, training)
    for mine, exact, theirs in zip(found, results[torch.float64], results[torch.float32], strict=True):
        assert_within_rounding(mine, exact, theirs)
    steps = [(s["name"].partition("{")[0], s["graph"]) for s in ours.daceopt.history if s["sites"]]
    assert steps.count(("attention-tiling", "program")) == 1
    assert steps.count(("micro-kernel-call", "program")) == 1
    assert "daceopt_product_float(" in ours.daceopt.source()


def _run(net: nn.Module, x: torch.Tensor, mask: torch.Tensor | None, training: bool) -> list[torch.Tensor]:
    """The result, and the gradients of the input, the parameters and a floating mask."""
    given = mask if mask is None or mask.dtype == torch.bool else mask.to(x.dtype)
    with torch.set_grad_enabled(training):
        x = x.requires_grad_(training)
        y = net(x, given)
        if not training:
            return [y]
        (y * torch.linspace(-1, 1, y.numel(), dtype=x.dtype).view_as(y)).sum().backward()
    return [y, x.grad, *(p.grad for p in net.parameters())]  # type: ignore[list-item]


def _narrow_masks(length: int) -> dict[str, torch.Tensor | None]:
    return {n: m.bfloat16() if n == "added" and m is not None else m for n, m in _masks(length).items()}


class Given(nn.Module):
    """Attention of given operands, causal or masked."""

    def __init__(self, causal: bool, shared: bool = False):
        super().__init__()
        self.causal, self.shared = causal, shared

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal, enable_gqa=self.shared
        )


NARROW: dict[str, tuple[tuple[int, int, int], str]] = {  # queries, keys, size of a head; mask
    "plain": ((50, 70, 8), "none"),
    "odd": ((33, 37, 7), "none"),
    "one query": ((1, 130, 16), "none"),
    "one key": ((9, 1, 16), "none"),
    "causal": ((70, 70, 16), "causal"),
    "added": ((50, 50, 8), "added"),
    "boolean": ((50, 50, 8), "boolean"),
    "shared heads": ((50, 70, 8), "none"),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("sizes", ["small tiles", "tiles as they are"])
@pytest.mark.parametrize("name", NARROW)
def test_bfloat16_is_multiplied_as_it_is(name: str, sizes: str) -> None:
    """No further from float64 than eager PyTorch, which rounds weights as well."""
    (rows, keys, size), masked = NARROW[name]
    torch.manual_seed(0)
    shared = name == "shared heads"
    given = [torch.randn(2, h, n, size).bfloat16() for h, n in ((4, rows), *2 * [(2 if shared else 4, keys)])]
    seed = torch.randn(2, 4, rows, size).bfloat16()
    mask = None if masked in ("causal", "none") else _narrow_masks(rows)[masked]
    step = STEP if sizes == "small tiles" else AttentionTiling()
    module = Given(masked == "causal", shared)
    ours = optimized_module(module, recipe=recipes.get("cpu").after("attention-lifting", step), fallback="raise")

    def run(fn: Any, kind: torch.dtype) -> list[torch.Tensor]:
        own = [t.to(kind).requires_grad_() for t in given]
        added = mask if mask is None or mask.dtype == torch.bool else mask.to(kind)
        y = fn(*own, added)
        y.backward(seed.to(kind))
        return [y.detach(), *(t.grad for t in own)]

    exact = run(module, torch.float64)
    for mine, wide, theirs in zip(run(ours, torch.bfloat16), exact, run(module, torch.bfloat16), strict=True):
        assert mine.dtype == torch.bfloat16
        error, peer = (float((t.double() - wide).norm()) for t in (mine, theirs))
        assert error <= 1.1 * peer + 2.0**-9 * float(wide.norm())
        assert_within_rounding(mine, wide, theirs)
    assert "daceopt_product_bfloat16" in ours.daceopt.source()
