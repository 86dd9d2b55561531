"""Graphs of whole models, forward and backward, before and after the recipe, as text and back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import daceopt
from daceopt import pipeline, recipes
from daceopt.commands import demo
from daceopt.errors import GraphTextError
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from daceopt.passes.runner import Runner
from daceopt.programs.compiled import CompiledPair, report
from tests.capture.torch.interpreted import Interpreted
from tests.ir.graph_text_checking import read_back
from tests.models import zoo

OPEN_CALL = "no text for a call of ATen with open sizes"


def graphs(module: nn.Module, args: Any, kwargs: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Graph]:
    """Those of all programs of a training step."""
    found: list[Graph] = []

    def derived(fingerprint: str, load: Callable[[], Any], **_: Any) -> CompiledPair:
        imported = load("cpu")
        program = Program.of(imported.graph, imported.gradients)
        found.append(program.forward.copy())
        Runner(recipes.get("auto")).run(program)
        found.extend(program.directions())
        source = pipeline.source_of(load, "none")
        source.graphs = made = source.derive()
        forward, *backward = [Interpreted(g, roles, made.forward.saved) for g, roles in made.directions()]
        return CompiledPair(report(made, []), forward, backward[0] if backward else None, source)  # type: ignore[arg-type]

    monkeypatch.setattr("daceopt.pipeline.compile_graph", derived)
    torch._dynamo.reset()
    daceopt.optimized_module(copy.deepcopy(module), fallback="raise", **options)(*args, **kwargs)
    return found


def _check(found: list[Graph]) -> None:
    assert len(found) >= 3
    for graph in found:
        if OPEN_CALL in (text := render(graph)):  # before differentiation only
            with pytest.raises(GraphTextError, match=OPEN_CALL):
                parse(text)
        else:
            read_back(graph)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_novel_module(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(graphs(demo.Novel(16), (torch.randn(2, 8, 16),), {}, monkeypatch, dynamic=dynamic))


def _cases() -> Iterator[Any]:
    for name in ("bert", "resnet", "gpt2", "unet", "lstm", "t5", "whisper", "dlrm", "wavenet", "mobilenet_v2"):
        for dynamic in (False, True):
            yield pytest.param(name, dynamic, marks=() if (name, dynamic) == ("lstm", False) else pytest.mark.models)


@pytest.mark.parametrize(("name", "dynamic"), list(_cases()))
def test_models(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    example = getattr(zoo, name)()
    _check(graphs(example.module, (), example.inputs, monkeypatch, dynamic=dynamic))
