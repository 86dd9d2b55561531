"""``python -m daceopt bisect``: finds the step and the site of a recipe that breaks a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.commands import model
from daceopt.ir.graph import Graph
from daceopt.passes.bisect import bisect

_BROKEN = 1


def arguments(parser: ArgumentParser) -> None:
    model.arguments(parser)


def run(options: Namespace) -> int:
    recipe = model.recipe(options)
    found = bisect(recipe, *_graph(model.named(options)))
    print(found if found is not None else "no step of the recipe breaks the model")
    return 0 if found is None else _BROKEN


def _graph(named: Path | model.ModuleOnDisk) -> tuple[Graph, dict[str, Any] | None]:
    """The graph before any recipe, and the arrays that it is called on where they are known."""
    if isinstance(named, Path):
        return import_model(load(named)), None
    frozen = named.frozen()
    graph = frozen.load().graph
    return graph, dict(zip(graph.inputs, frozen.feeds, strict=True))
