"""All rows: what each module of ``packages`` and ``programs`` says, a line a program."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from benchmarks.world.program import Program

BOTH = ("training", "inference")


class Row(NamedTuple):
    """``build(k)`` makes the program with the inputs of its kth size; ``environment`` is the one whose interpreter has
    the ``package`` (main: that of the project); ``stages`` that make sense for it, all if none is named."""

    package: str
    name: str
    build: Callable[[int], Program]
    environment: str = "main"
    modes: tuple[str, ...] = BOTH
    stages: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.package}/{self.name}"


def program(function: Callable[[int], Program]) -> Callable[[int], Program]:
    """Enter one of the programs that are written here, a training step, under the name of the function."""
    WRITTEN[function.__name__] = Row("programs", function.__name__, function, modes=("training",))
    return function


WRITTEN: dict[str, Row] = {}


@cache
def rows() -> dict[str, Row]:
    """Every row by its label, without importing the packages themselves."""
    from benchmarks.world import packages, programs

    found = [row for module in _modules(packages) for row in module.rows()]
    list(_modules(programs))
    return {row.label: row for row in (*found, *WRITTEN.values())}


def _modules(package: object) -> Iterator[object]:
    path, name = package.__path__, package.__name__  # type: ignore[attr-defined]
    for info in sorted(pkgutil.iter_modules(path), key=lambda m: m.name):
        yield importlib.import_module(f"{name}.{info.name}")


def chosen(names: list[str]) -> list[Row]:
    """Rows whose label or package is named, all if none is. Raises KeyError for what no row is called."""
    known = rows()
    if not names:
        return list(known.values())
    packages = {row.package for row in known.values()}
    if unknown := [n for n in names if n not in known and n not in packages]:
        raise KeyError(f"no program or package is called {', '.join(unknown)}; packages: {', '.join(sorted(packages))}")
    return [row for row in known.values() if row.label in names or row.package in names]
