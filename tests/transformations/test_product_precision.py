"""Products of float32 from bfloat16 parts: how exact they are, what is left alone, and that users ask for it."""

from __future__ import annotations

import dace
import numpy as np
import pytest
import torch
from torch import nn

import daceopt.ops  # noqa: F401  (registers how library nodes are interpreted)
from daceopt import optimized_module, recipes
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction
from daceopt.ir.scalar.types import BFLOAT16
from daceopt.transformations.local.product_precision import ProductPrecision

ERRORS = {"medium": (2e-4, 5e-3), "high": (2e-7, 1e-5)}  # relative: at least, at most


def graph_of(precision: str, bias: bool = False) -> Graph:
    graph = Graph("test")
    a, w = graph.add_input("a", (2, 24, 64), dace.float32), graph.add_input("w", (16, 64), dace.float32)
    b = Builder(graph, "k")
    reads = {"A": a, "B": b.transpose(w, [1, 0])}
    if bias:
        reads["Bias"] = graph.add_input("bias", (16,), dace.float32)
        reads["C"] = graph.add_input("c", (2, 24, 16), dace.float32)
    y = graph.add_array("y", (2, 24, 16), dace.float32)
    b.library(Contraction, reads, {"Y": y}, alpha=0.5)
    graph.add_output(y)
    graph.source.precision = precision
    return graph


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("precision", ERRORS)
def test_errors(precision: str, bias: bool) -> None:
    graph = graph_of(precision, bias)
    rng = np.random.default_rng(7)
    feeds = {n: rng.standard_normal(graph.shape(n)).astype(np.float32) for n in graph.inputs}
    wide = [feeds[n].astype(np.float64) for n in graph.inputs]
    exact = 0.5 * wide[0] @ wide[1].T + (wide[2] + wide[3] if bias else 0)
    assert len(ProductPrecision(least=1, everywhere=True).run(graph).sites) == 1
    graph.validate()
    products = [n for n in graph.nodes() if isinstance(n, Contraction)]
    assert len(products) == {"medium": 1, "high": 3}[precision]
    assert all(graph.dtype(graph.reads(n)[c]) == BFLOAT16 for n in products for c in ("A", "B"))
    assert not [n for n in graph.kernels() if graph.is_view(graph.inputs_of(n)[0])]  # parts are made of whole arrays
    found = np.asarray(interpret(graph, feeds)[graph.outputs[0]], np.float64)
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    least, most = ERRORS[precision]
    assert least < error < most


def test_what_is_left_alone() -> None:
    assert not ProductPrecision(least=1, everywhere=True).run(graph_of("highest")).sites
    small = ProductPrecision(least=10**6, everywhere=True).run(graph_of("high"))
    assert small.near_misses == ["k: 49152 multiplications; expected 1000000 or more, known when compiling"]
    narrow = Graph("test")
    a, w = narrow.add_input("a", (4, 4), BFLOAT16), narrow.add_input("w", (4, 4), BFLOAT16)
    narrow.add_output(Builder(narrow, "k").matmul(a, w))
    narrow.source.precision = "high"
    assert not ProductPrecision(least=1, everywhere=True).run(narrow).sites


def test_a_module_is_as_exact_as_was_asked_for() -> None:
    """Both directions; the check of numbers knows that less was asked for."""
    torch.manual_seed(0)
    steps = recipes.get("cpu").without("product-precision")
    recipe = steps.after("product-transposition", ProductPrecision(least=1, everywhere=True))
    module, x = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16)), torch.randn(48, 64)
    exact = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16)).double()
    exact.load_state_dict(module.state_dict())
    exact(x.double()).square().sum().backward()
    ours = optimized_module(module, recipe=recipe, fallback="raise", verify="numerics")
    before = torch.get_float32_matmul_precision()
    try:
        for precision, (least, most) in {**ERRORS, "highest": (0.0, 1e-6)}.items():
            torch.set_float32_matmul_precision(precision)
            ours.zero_grad()
            ours(x).square().sum().backward()
            for p, q in zip(ours.parameters(), exact.parameters()):
                assert p.grad is not None and q.grad is not None
                error = float((p.grad.double() - q.grad).norm() / q.grad.norm())
                assert error < 3 * most and (p.dim() == 1 or error > least / 3)
    finally:
        torch.set_float32_matmul_precision(before)
    assert ours.daceopt.stats.programs == 3
