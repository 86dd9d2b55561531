"""Every schedule of whole models, forward and backward: isl gives it back, and agrees that it is legal."""

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
from daceopt.ir.polyhedral.schedule_isl import from_isl, to_isl
from daceopt.ir.schedule.schedule import Alloc, Loop, Tree, default, map_tree, schedule_of, without_accumulators
from daceopt.modules.observe import observe
from daceopt.modules.options import Options
from tests.ir.isl_checking import assert_agrees, unmarked
from tests.models import zoo


def _kernels(module: nn.Module, args: Any, kwargs: Any, dynamic: bool) -> Iterator[tuple[Graph, Kernel]]:
    found = observe(module, args, kwargs, Options(fallback="raise", dynamic=dynamic))
    assert not found.refused
    for made, _ in found.graphs:
        for graph in (made.pair.graphs.forward, made.pair.graphs.backward):
            yield from ((graph, k.kernel) for k in (graph.kernels() if graph is not None else ()))


def _plain(tree: Tree) -> Tree:
    """What isl knows without marks: serial loops and statements."""

    def change(node: Tree) -> Tree:
        if isinstance(node, Alloc):
            return node.body
        return Loop(node.param, node.extent, node.body, rest=node.rest) if isinstance(node, Loop) else node

    return map_tree(without_accumulators(tree), change)


def _check_all(module: nn.Module, args: Any, kwargs: Any, dynamic: bool = False) -> None:
    schedules = same = 0
    for graph, kernel in _kernels(module, args, kwargs, dynamic):
        for tree in dict.fromkeys((schedule_of(kernel), default(kernel))):
            check(graph, kernel, tree)
            assert_agrees(graph, kernel, tree)
            schedules += 1
            if not dynamic:
                same += from_isl(graph, kernel, unmarked(to_isl(graph, kernel, tree))) == _plain(tree)
    assert schedules >= 5
    assert dynamic or same >= 0.95 * schedules  # a loop of one iteration has no part in the index that isl finds


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
