"""``python -m daceopt bisect``: finds the step and the site of a recipe that breaks a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from daceopt.capture.onnx.file import load
from daceopt.capture.onnx.importer import import_model
from daceopt.commands import model
from daceopt.ir.control.program import Program
from daceopt.passes.bisect import bisect

_BROKEN = 1


def arguments(parser: ArgumentParser) -> None:
    model.arguments(parser)


def run(options: Namespace) -> int:
    recipe = model.recipe(options)
    guilty = bisect(recipe, *_program(model.model_of(options)), built=True)
    print(guilty if guilty is not None else "no step of the recipe breaks the model")
    return 0 if guilty is None else _BROKEN


def _program(named: Path | model.ModuleOnDisk) -> tuple[Program, dict[str, Any] | None]:
    """The program before any recipe, and the arrays that it is called on where they are known."""
    if isinstance(named, Path):
        return Program.of(import_model(load(named))), None
    frozen = named.freeze()
    imported = frozen.load()
    graph = imported.graph
    return Program.of(graph, imported.gradients), dict(zip(graph.inputs, frozen.feeds, strict=True))
