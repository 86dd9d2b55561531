"""Small values in the cache: what was measured on a machine, or found by a search."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from daceopt.store.cache import default_cache

T = TypeVar("T")

_FILE = "value.json"


class Values(Generic[T]):
    """Values of one kind by their keys, as JSON: numbers, text, data classes, and lists and dicts of these.

    ``parse`` makes a value of what JSON says, and raises where that is none; such an entry counts as absent.
    """

    def __init__(self, kind: str, parse: Callable[[Any], T]) -> None:
        self._kind, self._parse = kind, parse

    def find(self, key: str) -> T | None:
        """The value, or None where there is none."""
        return default_cache().read(self._kind, key, self._read)

    def make(self, key: str, compute: Callable[[], object]) -> T:
        """The value, computed first if needed."""
        return default_cache().make(self._kind, key, lambda folder: _write(folder, compute()), self._read)

    def keep(self, key: str, value: object) -> None:
        """Let ``value`` be there from now on, in the place of another one."""
        cache = default_cache()
        cache.discard(self._kind, key)
        cache.put(self._kind, key, lambda folder: _write(folder, value))

    def _read(self, entry: Path) -> T:
        return self._parse(json.loads((entry / _FILE).read_text(encoding="utf-8")))


def _write(folder: Path, value: object) -> None:
    (folder / _FILE).write_text(json.dumps(value, default=asdict), encoding="utf-8")
