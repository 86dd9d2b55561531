"""Plain Python files of users: run as modules of their own, and what they define registered."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from daceopt.errors import DaceoptError
from daceopt.passes.recipe import recipes
from daceopt.passes.transform import transformations


def load_file(path: str | Path) -> list[str]:
    """Register the transformations and recipes that a plain Python file defines; returns their names.

    Raises DaceoptError when the file is missing, fails to run, defines none, or takes a name that something else has.
    """
    path = Path(path).resolve()
    module = run_file(path, f"--load {path}")
    recipes.check_free(module)
    names = transformations.add_module(module) + recipes.add_module(module)
    if not names:
        raise DaceoptError(f"--load {path}: expected at least one Transformation subclass or Recipe, found none")
    return names


def run_file(path: Path, said: str) -> ModuleType:
    """Run a plain Python file as a module of its own. DaceoptError, which begins with ``said``, when it fails."""
    if not path.is_file():
        raise DaceoptError(f"{said}: {'it is a folder' if path.is_dir() else 'no such file'}")
    name = f"daceopt_loaded_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DaceoptError(f"{said}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise DaceoptError(f"{said} failed: {type(error).__name__}: {error}") from error
    return module
