"""Models as the command line names them, an ONNX file or ``file.py:factory``, and what is done to them."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daceopt.errors import DaceoptError, did_you_mean
from daceopt.passes.loading import load_file, run_file
from daceopt.passes.recipe import Recipe, recipes

if TYPE_CHECKING:
    from torch import nn

    from daceopt.modules.frozen import Frozen
    from daceopt.training.training_step import TrainingStep

EXPECTED = "an ONNX file, or file.py:name of a module, a class of modules or a function that makes one"


@dataclass(frozen=True)
class ModuleOnDisk:
    """A module that a Python file makes, and the arguments of an example call; of its training ``step``, if it made
    that."""

    title: str
    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    step: TrainingStep | None = None

    def freeze(self) -> Frozen:
        """The module in eval mode as one graph. Raises CaptureError with the reason when it is none."""
        from daceopt.modules.frozen import freeze

        return freeze(self.title, self.module, self.args, self.kwargs)


def subject_arguments(parser: ArgumentParser) -> None:
    """Which model, and which files of the user's belong to it."""
    parser.add_argument("model", help="an ONNX file, or file.py:name of a module or of what makes one")
    parser.add_argument(
        "--load", type=Path, action="append", default=[], metavar="FILE", help="register the transformations of a file"
    )


def arguments(parser: ArgumentParser) -> None:
    """What every command takes that compiles a model."""
    subject_arguments(parser)
    parser.add_argument("--recipe", default="auto", help="name of a recipe (default: auto)")
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="STEP",
        help="add a step, e.g. my-fusion{size=32}, after its level's last",
    )
    parser.add_argument("--verify", choices=("structure", "numerics"), help="check the graph around every step")


def inputs_argument(parser: ArgumentParser) -> None:
    """On what an ONNX model is called."""
    parser.add_argument(
        "--inputs", type=Path, metavar="FILE", help="an .npz file with an ONNX model's inputs by name, not random ones"
    )


def recipe(options: Namespace) -> Recipe:
    """The recipe that the options describe, with files loaded before it is looked up."""
    for path in options.load:
        load_file(path)
    chosen: Recipe = recipes.get(options.recipe)
    for step in options.add:
        chosen = chosen + step
    return chosen


def model_of(options: Namespace) -> Path | ModuleOnDisk:
    """The ONNX file's path, or the module that a Python file makes."""
    on_disk = find(options.model)
    if not isinstance(on_disk, Path) and getattr(options, "inputs", None) is not None:
        raise DaceoptError("--inputs is for ONNX files: a Python file says itself on what its module is called")
    return on_disk


def find(name: str, steps: bool = False) -> Path | ModuleOnDisk:
    """What ``name`` stands for; with ``steps`` that may be a training step. Raises DaceoptError for a Python file that
    is missing, fails, or makes no module.

    An ONNX file is not looked at.
    """
    path, colon, attribute = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _module(Path(path), attribute, steps)
    if name.endswith(".py"):
        raise DaceoptError(f"{name}: which module of this file? expected {EXPECTED}")
    return Path(name)


def _module(path: Path, name: str, steps: bool) -> ModuleOnDisk:
    from torch import nn

    from daceopt.training.training_step import TrainingStep

    kinds = (nn.Module, TrainingStep) if steps else nn.Module
    title = f"{path}:{name}"
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for what the file imports from beside it, as if Python ran it
    defined = vars(run_file(path.resolve(), str(path)))
    if name not in defined:
        functions = [key for key, value in defined.items() if callable(value) and not key.startswith("_")]
        listed = f"{title}: the file defines no {name!r}; it has {', '.join(functions) or 'nothing to call'}"
        raise DaceoptError(listed + did_you_mean(name, functions))
    value = defined[name]
    pair = value if isinstance(value, kinds) or not callable(value) else _call(value, title)
    module, arguments = pair if isinstance(pair, tuple) and len(pair) == 2 else (pair, None)
    if not isinstance(module, kinds):
        raise DaceoptError(f"{title}: expected a module or (module, inputs), found {type(pair).__name__}")
    inputs = arguments if arguments is not None else _example_inputs(defined, name, title)
    args, kwargs = _arguments(inputs)
    if isinstance(module, TrainingStep):
        return ModuleOnDisk(title, module.model, args, kwargs, module)
    return ModuleOnDisk(title, module, args, kwargs)


def _example_inputs(defined: Mapping[str, object], name: str, title: str) -> Any:
    """What the file says the module is called on."""
    names = (f"{name}_inputs", "example_inputs")
    chosen = next((key for key in names if key in defined), None)
    if chosen is None:
        raise DaceoptError(
            f"{title}: on what is it called? return (module, inputs), or define {names[0]}() or {names[1]}()"
        )
    value = defined[chosen]
    return _call(value, f"{title.rpartition(':')[0]}:{chosen}") if callable(value) else value


def _arguments(inputs: object) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and keyword arguments: a tuple or list, a dict by name, or the only argument."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _call(function: Any, title: str) -> Any:
    """Call what takes no argument. Whatever it raises becomes one line."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise DaceoptError(f"{title}: expected something to call without arguments; {error}") from error
    except ValueError:  # no signature to look at
        pass
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise DaceoptError(f"{title} failed: {_first_line(error)}{_place(error)}") from error


def _first_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Where it was raised, as far as that helps."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""  # noqa: PTH119
