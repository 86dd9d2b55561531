"""Whole models by the recipe ``apollo``: results and gradients, and that it merges all that the recipe ``cpu`` does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import daceopt
from daceopt import pipeline, recipes
from daceopt.commands import demo
from daceopt.cost import data_movement
from daceopt.ir.control.program import Program
from daceopt.passes.choice import common_prefix
from daceopt.passes.runner import Runner
from daceopt.programs.compiled import CompiledPair, report
from daceopt.transformations.local.map_fusion import MapFusion
from tests.capture.torch.interpreted import Interpreted
from tests.models.test_models import compare, example, gradients, tensors, widened
from tests.models.zoo import ARCHITECTURES
from tests.numerics import assert_within_rounding

QUICK = ("dlrm",)
ABOVE_LOOPS = ("coarse", "lower", "local", "differentiate", "layout")
NAMES = [pytest.param(n, marks=() if n in QUICK else pytest.mark.models) for n in ARCHITECTURES]


class Programs:
    """Stands in for the compiler: programs by ``apollo`` that the interpreter runs, and the graphs that they are of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.apollo: list[Program] = []
        self.cpu: list[Program] = []
        monkeypatch.setattr("daceopt.pipeline.compile_graph", self._compile)
        torch._dynamo.reset()

    def _compile(self, fingerprint: str, load: Callable[[], Any], **_: Any) -> CompiledPair:
        imported = load("cpu")
        for name, found in (("apollo", self.apollo), ("cpu", self.cpu)):
            program = Program.of(imported.graph.copy(), imported.gradients)
            Runner(recipes.get(name)).run(program, ABOVE_LOOPS)
            found.append(program)
        source = pipeline.source_of(load, "apollo")
        source.graphs = made = source.derive()
        forward, *backward = [Interpreted(g, roles, made.forward.saved) for g, roles in made.directions()]
        return CompiledPair(report(made, []), forward, backward[0] if backward else None, source)  # type: ignore[arg-type]


def moved(programs: list[Program]) -> tuple[int, float]:
    """Kernels and calls of libraries, and bytes that they read and write, open sizes taken as 8."""
    graphs = [g for p in programs for g in p.directions()]
    total = sum(data_movement(g).total for g in graphs)
    return sum(len(g.nodes()) for g in graphs), float(total.subs(dict.fromkeys(total.free_symbols, 8)))


@pytest.mark.parametrize("name", NAMES)
def test_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, programs = example(name), Programs(monkeypatch)
    optimized = daceopt.optimized_module(copy.deepcopy(found.module), recipe="apollo", fallback="raise")
    with torch.no_grad():
        compare(tensors(optimized(**found.inputs)), found)
    exact, peer = copy.deepcopy(found.module).double(), gradients(found.module, found.inputs)
    assert_within_rounding(gradients(optimized, found.inputs), gradients(exact, widened(found.inputs)), peer)
    (nodes, read), (others, theirs) = moved(programs.apollo), moved(programs.cpu)
    assert nodes <= others and read <= 1.001 * theirs
    left = [site for p in programs.apollo for g in p.directions() for site in MapFusion().run(g).sites]
    assert left == []


def test_a_choice_runs_what_cpu_has_in_common_once() -> None:
    """Attention in tiles and the derivative included."""
    own, whole = (recipes.get(name).with_differentiation().resolve() for name in ("apollo", "cpu"))
    names = [step.name for step in whole[: common_prefix([own, whole])]]
    assert names[-1] == "differentiate" and "attention-tiling" in names


@pytest.mark.breadth
def test_attention_in_tiles() -> None:
    layer = nn.TransformerEncoderLayer(16, 1, 32, dropout=0.0, batch_first=True)
    optimized = daceopt.optimized_module(copy.deepcopy(layer), recipe="apollo", fallback="raise")
    x = torch.randn(1, 520, 16)
    results = []
    for module, operand in ((optimized, x), (copy.deepcopy(layer).double(), x.double()), (layer, x)):
        own = operand.clone().requires_grad_()
        y = module(own)
        (gradient,) = torch.autograd.grad(y.square().sum(), own)
        results.append([y.detach(), gradient])
    assert_within_rounding(*results)
    assert any(step["name"].startswith("attention-tiling") and step["sites"] for step in optimized.daceopt.history)


@pytest.mark.breadth
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    module = nn.Sequential(demo.Novel(16), nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.LogSoftmax(-1))
    optimized = daceopt.optimized_module(copy.deepcopy(module), recipe="apollo", dynamic=dynamic, fallback="raise")
    exact = copy.deepcopy(module).double()
    for count in (3, 5) if dynamic else (4,):
        x = torch.randn(count, 8, 16)
        results = [m(x.double() if m is exact else x) for m in (optimized, exact, module)]
        assert_within_rounding(*results)
        for m, y in zip((optimized, exact, module), results, strict=True):
            m.zero_grad()
            (y * torch.arange(32, dtype=y.dtype)).sum().backward()
        for ours, theirs, peer in zip(optimized.parameters(), exact.parameters(), module.parameters(), strict=True):
            assert ours.grad is not None
            assert_within_rounding(ours.grad, theirs.grad, peer.grad)


def test_checked_step_by_step() -> None:
    module = nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.Softmax(-1))
    net = daceopt.optimized_module(module, recipe="apollo", verify="numerics", fallback="raise")
    net(torch.randn(6, 8, requires_grad=True)).sum().backward()
    applied = {step["name"] for step in net.daceopt.history if step["sites"]}
    assert {"compound-opening", "cluster-extraction", "aggregation", "memory-stitching"} <= applied
