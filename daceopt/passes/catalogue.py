"""Named things that live one per file: built in, from entry points, or from a plain file given by the user."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from daceopt.errors import DaceoptError, did_you_mean


class Registry:
    """Finds ``pad-conv-fusion`` in ``pad_conv_fusion.py`` of a package, in entry points, or in loaded files.

    ``pick(module)`` gives the things that a module defines, as ``{name: thing}``.
    """

    def __init__(self, kind: str, package: str, pick: Callable[[ModuleType], dict[str, Any]]):
        self._kind, self._package, self._pick = kind, package, pick
        self._loaded: dict[str, Any] = {}
        self._files_of: dict[str, str] = {}  # of what was loaded: the module that defines it

    def names(self) -> list[str]:
        """All names, sorted. Imports nothing but the package itself."""
        return sorted({*self._files, *self._entry_points, *self._loaded})

    def get(self, name: str) -> Any:
        """The thing called ``name``; loaded files come first. Raises DaceoptError with what exists."""
        if not isinstance(name, str):
            raise DaceoptError(f"expected the name of a {self._kind}, found {name!r}")
        if name in self._loaded:
            return self._loaded[name]
        module = self._files.get(name)
        if module is not None:
            return self._from_module(name, importlib.import_module(module))
        if name in self._entry_points:
            return self._entry_points[name].load()
        listed = f"no {self._kind} is called {name!r}; there are: {', '.join(self.names())}"
        raise DaceoptError(listed + did_you_mean(name, self.names()))

    def is_built_in(self, name: str) -> bool:
        """Does ``name`` come from daceopt itself? Imports nothing but the package."""
        return name not in self._loaded and name in self._files

    def add(self, name: str, thing: object) -> None:
        """Register ``thing`` for this process; a later one of the same name replaces it."""
        self._loaded[name] = thing
        self._files_of.pop(name, None)

    def add_module(self, module: ModuleType) -> list[str]:
        """Register what ``module`` defines, in place of what an earlier load of it defined; returns the names.

        Raises DaceoptError, and registers nothing, where a name is taken by anything else.
        """
        self.check_free(module)
        entries = self._pick(module)
        self._loaded.update(entries)
        self._files_of.update(dict.fromkeys(entries, module.__name__))
        return sorted(entries)

    def check_free(self, module: ModuleType) -> None:
        """Raise DaceoptError where something has the name of what ``module`` defines."""
        for name in self._pick(module):
            self._check_name(name, module)

    def _check_name(self, name: str, module: ModuleType) -> None:
        owner = self._files.get(name) or (name in self._entry_points and "a plug-in")
        other = self._files_of.get(name, module.__name__)
        if name in self._loaded and other != module.__name__:
            owner = getattr(sys.modules.get(other), "__file__", other)
        if owner:
            clash = f"{getattr(module, '__file__', module.__name__)} defines the {self._kind} {name!r}"
            raise DaceoptError(f"{clash}, a name that {owner} has already; give it another one")

    def _from_module(self, name: str, module: ModuleType) -> Any:
        items = self._pick(module)
        if name not in items:
            raise DaceoptError(f"{module.__name__} should define the {self._kind} {name!r}, it defines {sorted(items)}")
        return items[name]

    @cached_property
    def _files(self) -> dict[str, str]:
        return dict(_modules(importlib.import_module(self._package)))

    @cached_property
    def _entry_points(self) -> dict[str, Any]:
        return {e.name: e for e in entry_points(group=self._package)}


def _modules(package: ModuleType) -> Iterator[tuple[str, str]]:
    """(kebab-case name, full module name) of every public module below ``package``."""
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        stem = info.name.rpartition(".")[2]
        if stem.startswith("_"):
            continue
        if info.ispkg:
            yield from _modules(importlib.import_module(info.name))
        else:
            yield stem.replace("_", "-"), info.name
