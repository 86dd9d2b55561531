"""Every schedule of whole models, forward and backward: isl agrees that it is legal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from daceopt.commands import demo
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.schedule_check import check
from daceopt.ir.schedule.schedule import default, schedule_of
from daceopt.modules.observe import observe
from daceopt.modules.options import Options
from tests.ir.isl_checking import assert_agrees
from tests.models import zoo


def _kernels(module: nn.Module, args: Any, kwargs: Any, dynamic: bool) -> Iterator[tuple[Graph, Kernel]]:
    found = observe(module, args, kwargs, Options(fallback="raise", dynamic=dynamic))
    assert not found.refused
    for made, _ in found.graphs:
        for graph in (made.pair.graphs.forward, made.pair.graphs.backward):
            yield from ((graph, k.kernel) for k in (graph.kernels() if graph is not None else ()))


def _check_all(module: nn.Module, args: Any, kwargs: Any, dynamic: bool = False) -> None:
    schedules = 0
    for graph, kernel in _kernels(module, args, kwargs, dynamic):
        for tree in dict.fromkeys((schedule_of(kernel), default(kernel))):
            check(graph, kernel, tree)
            assert_agrees(graph, kernel, tree)
            schedules += 1
    assert schedules >= 5


@pytest.mark.parametrize("dynamic", [False, True])
def test_schedules_of_a_novel_module(dynamic: bool) -> None:
    _check_all(demo.Novel(16), (torch.randn(2, 8, 16),), {}, dynamic)


@pytest.mark.models
def test_schedules_over_open_sizes() -> None:
    example = zoo.resnet()
    _check_all(example.module, (), example.inputs, dynamic=True)


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert", "resnet", "unet", "gpt2"])
def test_schedules_of_small_models(name: str) -> None:
    example = getattr(zoo, name)()
    _check_all(example.module, (), example.inputs)


@pytest.mark.models
@pytest.mark.parametrize("name", list(demo.MODELS))
def test_schedules_of_the_demo(name: str) -> None:
    module, args = demo.MODELS[name]()
    _check_all(module, args, {})
