"""Plain Python files of users: run as modules of their own, and what they define registered."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from daceopt.errors import DaceoptError
from daceopt.passes.recipe import recipes
from daceopt.passes.transform import OF_DACE, transformations


def load_file(path: str | Path) -> list[str]:
    """Register the transformations and recipes that a plain Python file defines; returns their names, those of
    transformations of DaCe as recipes call them.

    Raises DaceoptError when the file is missing, fails to run, defines none, or takes a name that something else has.
    """
    path = Path(path).resolve()
    module = run_file(path, f"--load {path}")
    recipes.check_free(module)
    names = transformations.add_module(module) + recipes.add_module(module) + _of_dace(module)
    if not names:
        raise DaceoptError(f"--load {path}: expected at least one Transformation subclass or Recipe, found none")
    return names


def _of_dace(module: ModuleType) -> list[str]:
    """The classes of ``module`` that extend DaCe, which finds them by itself."""
    base = getattr(sys.modules.get("dace.transformation.transformation"), "TransformationBase", None)
    classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    return sorted(OF_DACE + c.__name__ for c in classes if base is not None and issubclass(c, base))


def run_file(path: Path, label: str) -> ModuleType:
    """Run a plain Python file as a module of its own. DaceoptError, which begins with ``said``, when it fails."""
    if not path.is_file():
        raise DaceoptError(f"{label}: {'it is a folder' if path.is_dir() else 'no such file'}")
    name = f"daceopt_loaded_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DaceoptError(f"{label}: expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise DaceoptError(f"{label} failed: {type(error).__name__}: {error}") from error
    return module
