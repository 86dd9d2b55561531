"""Machine models from TOML files; what makes no sense is refused with the file and the key."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from daceopt.cost.machines.hierarchy import WORK, Buffer, MachineModel, Unit
from daceopt.errors import MachineFileError, did_you_mean
from daceopt.ir.graph.placements import LEVELS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = ("name", "clusters", "cores", "units", *LEVELS, "clock", "launch", "float_bytes")


def load(path: str | PathLike[str]) -> MachineModel:
    """The machine that a TOML file describes.

    Raises MachineFileError with the file, the key, what was expected and what was found: for a file that is none, a
    missing level, zero sizes, negative rates, unknown keys, a unit that runs nothing, work that nothing runs.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MachineFileError(f"{path}: expected a TOML file that describes a machine; {error}") from error
    return _machine(_Table(str(path), "", table))


class _Table(NamedTuple):
    """A table of the file, with the keys on the way to it."""

    path: str
    key: str
    values: Mapping[str, Any]

    def wrong(self, key: str, expected: str, text: str = "") -> MachineFileError:
        where = f"{self.key}{key}" if key else self.key.rstrip(".")
        shown = text or (f"found {self.values[key]!r}" if key in self.values else "it is missing")
        return MachineFileError(f"{self.path}, key {where}: expected {expected}, {shown}")

    def only(self, names: Collection[str]) -> _Table:
        for key in self.values:
            if key not in names:
                raise self.wrong(key, f"one of {', '.join(names)}", f"found the key {key!r}{did_you_mean(key, names)}")
        return self

    def positive(self, key: str, kind: type, default: object = None) -> Any:
        """A number above zero; where ``default`` is given, the key may be absent or 0."""
        value = self.values.get(key, default)
        allowed = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, allowed) or not value < float("inf"):
            raise self.wrong(key, "a whole number" if kind is int else "a number")
        if value < 0 or (value == 0 and default is None):
            raise self.wrong(key, "a number above 0" if default is None else "a number that is not negative")
        return kind(value)

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "a name")
        return value

    def table(self, key: str) -> _Table:
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a table")
        return _Table(self.path, f"{self.key}{key}.", value)

    def tables(self, key: str) -> list[_Table]:
        value = self.values.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(v, Mapping) for v in value):
            raise self.wrong(key, f"at least one table [[{key}]]")
        return [_Table(self.path, f"{self.key}{key}[{k}].", v) for k, v in enumerate(value)]


def _machine(table: _Table) -> MachineModel:
    table.only(_KEYS)
    units = tuple(_unit(t) for t in table.tables("units"))
    names = [u.name for u in units]
    if len(set(names)) < len(names):
        raise table.wrong("units", "units of different names", f"found {', '.join(names)}")
    idle = [work for work in WORK if not any(work in u.runs for u in units)]
    if idle:
        raise table.wrong("units", f"a unit that runs {idle[0]!r}", f"found only {', '.join(names)}, which do not")
    local, shared, memory = (_buffer(table.table(level)) for level in LEVELS)
    return MachineModel(
        name=table.text("name"),
        clusters=table.positive("clusters", int),
        cores=table.positive("cores", int),
        units=units,
        local=local,
        shared=shared,
        memory=memory,
        clock=table.positive("clock", float),
        launch=table.positive("launch", float, 0.0),
        float_bytes=table.positive("float_bytes", int) if "float_bytes" in table.values else 4,
    )


def _unit(table: _Table) -> Unit:
    table.only(("name", "runs", "rate", "count"))
    runs = table.values.get("runs")
    if not isinstance(runs, list) or not runs or any(work not in WORK for work in runs):
        raise table.wrong("runs", f"a list of some of {', '.join(map(repr, WORK))}")
    return Unit(table.text("name"), tuple(runs), table.positive("rate", float), table.positive("count", int, 0))


def _buffer(table: _Table) -> Buffer:
    table.only(("size", "bandwidth", "reserved"))
    size, reserved = table.positive("size", int), table.positive("reserved", int, 0)
    if reserved >= size:
        raise table.wrong("reserved", f"less than its {size} bytes")
    return Buffer(size, table.positive("bandwidth", float), reserved)
