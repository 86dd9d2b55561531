"""Residual accumulation: which convolutions sum up where their residual stands, and the numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import libs, optimized_module
from daceopt.codegen import memory_plan
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.library import Convolution
from daceopt.passes.transform import Site
from daceopt.recipes.cpu import cpu
from daceopt.transformations.hardware.residual_accumulation import ResidualAccumulation
from daceopt.transformations.layout._layout_costs import channels_last_strides
from tests.numerics import assert_within_rounding
from tests.transformations.lowered import F, apply, finish, misses, start

pytestmark = pytest.mark.skipif("onednn" not in libs.names(), reason="oneDNN's wheels are not installed")

SHAPE = (2, 32, 6, 6)


def convolved(graph: Graph, x: str, *, added: str | None = None, last: bool = True, dtype: Any = F) -> str:
    """The result of a 1x1 convolution as wide as ``x``."""
    weights = graph.add_input("w", (32, 32, 1, 1), dtype)
    result = graph.add_array("y", SHAPE, dtype, strides=channels_last_strides(SHAPE) if last else None)
    operands = {"X": x, "W": weights} | ({"Z": added} if added else {})
    graph.add_node(Convolution(inputs=tuple(operands)), operands, {"Y": result})
    return result


def block(last: bool = True, **also_read: bool) -> tuple[Graph, str, str]:
    """``z = conv(x); y = conv(conv(z)) + z``, whose result is read; z and y."""
    graph, b, (x,) = start(SHAPE)
    z = convolved(graph, x, last=last)
    y = convolved(graph, convolved(graph, z, last=last), added=z, last=last)
    finish(graph, b.elementwise(lambda v, u: v + u, y, z) if also_read else b.elementwise(lambda v: v + 1, y))
    return graph, z, y


def test_the_result_stands_where_the_residual_did() -> None:
    graph, z, y = block()
    assert memory_plan.plan(graph).arena[z] != memory_plan.plan(graph).arena[y]
    assert len(apply(ResidualAccumulation(), graph).sites) == 1
    found = memory_plan.plan(graph)
    assert found.arena[z] == found.arena[y]
    assert apply(ResidualAccumulation(), graph).sites == []


def test_a_residual_that_is_read_later_keeps_its_memory() -> None:
    graph, z, y = block(also_read=True)
    apply(ResidualAccumulation(), graph)
    found = memory_plan.plan(graph)
    assert found.arena[z] != found.arena[y]


def test_a_residual_that_is_convolved_as_well_keeps_its_memory() -> None:
    graph, b, (x,) = start(SHAPE)
    z = convolved(graph, x)
    y = convolved(graph, z, added=z)
    finish(graph, b.elementwise(lambda v: v + 1, y))
    assert len(apply(ResidualAccumulation(), graph).sites) == 1
    found = memory_plan.plan(graph)
    assert found.arena[z] != found.arena[y]


def test_where_it_does_not_pay() -> None:
    graph, _, _ = block(last=False)
    assert "channels" in misses(apply(ResidualAccumulation(), graph))
    graph, b, (x,) = start(SHAPE)
    finish(graph, b.elementwise(lambda v: v + 1, convolved(graph, x, added=x)))
    assert "belongs to the caller" in misses(apply(ResidualAccumulation(), graph))
    graph, _, _ = block()
    with libs.prefer(Convolution="aten"):
        assert "another library" in misses(apply(ResidualAccumulation(), graph))


class Blocks(nn.Module):
    """Bottlenecks with normalizations, of ``channels``, with ``groups`` in the middle."""

    def __init__(self, channels: int = 64, groups: int = 1, last: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(channels, channels // 2, 1, bias=False), nn.BatchNorm2d(channels // 2), nn.ReLU()),
                *(nn.Conv2d(channels // 2, channels // 2, 3, padding=1, groups=groups), nn.ReLU()),
                *(nn.Conv2d(channels // 2, channels, 1, bias=False), nn.BatchNorm2d(channels)),
            )
            for _ in range(3)
        )
        self.last = last()
        for norm in (m for m in self.modules() if isinstance(m, nn.BatchNorm2d)):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            nn.init.normal_(norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, 3, H, W]; result: [N, channels]."""
        x = self.stem(x)
        for block in self.blocks:
            x = self.last(block(x) + x)
        return x.mean((2, 3))


CHANNELS_LAST = cpu.with_options("layout-search", blocked=False)


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [{}, {"groups": 4}, {"channels": 38}, {"last": nn.ReLU6}, {"last": nn.Identity}])
def test_numbers_of_whole_blocks(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    changed = 0

    def apply_and_count(self: ResidualAccumulation, site: Site) -> None:
        nonlocal changed
        changed += 1
        applied(self, site)

    applied = ResidualAccumulation.apply
    monkeypatch.setattr(ResidualAccumulation, "apply", apply_and_count)
    model = Blocks(**options).eval()
    compiled = optimized_module(copy.deepcopy(model), fallback="raise", recipe=CHANNELS_LAST)
    wide = copy.deepcopy(model).double()
    with torch.inference_mode():
        for shape in ((2, 3, 24, 24), (5, 3, 7, 9)):
            x = torch.randn(shape).to(memory_format=torch.channels_last)
            expected = wide(x.double())
            assert_within_rounding(compiled(x), expected, model(x))
            assert_within_rounding(compiled(x), expected, model(x))  # what it wrote over is written again
            x[0, 0, 0, 0] = -torch.inf  # a second run, with relus of their own
            assert torch.equal(compiled(x).isnan(), model(x).isnan())
    assert changed >= len(model.blocks) - 1  # the last one may belong to the mean
