"""Lines of the innermost code of a kernel, and elements of storage types that go from one array to another as bits."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_STORED = re.compile(r"([^=]*) = dop::(\w+)::store\((v\d+)\);")
_LOADED = re.compile(r"const float v\d+ = dop::(\w+)::load\((.*)\);")
_SAME = re.compile(r"const float v\d+ = (v\d+);")


@dataclass(frozen=True)
class Line:
    """A line of code, and the value that it defines from the values ``uses``, where it does nothing else."""

    text: str
    defines: str = ""
    uses: frozenset[str] = frozenset()


def store_bits(lines: list[Line], store: str, elsewhere: Collection[str]) -> str:
    """The statement ``store``; where it stores an element that ``lines`` loaded of an array of the same narrow type,
    nothing is converted: its bits are kept, in a further line, and stored. But for values that stand ``elsewhere``."""
    found = _STORED.fullmatch(store)
    if found is None:
        return store
    target, kind, name = found.groups()
    places = {line.defines: k for k, line in enumerate(lines) if line.defines}
    while name in places and (same := _SAME.fullmatch(lines[places[name]].text)):
        name = same.group(1)
    load = _LOADED.fullmatch(lines[places[name]].text) if name in places and name not in elsewhere else None
    if load is None or load.group(1) != kind or not _is_one(load.group(2)):
        return store
    bits = f"{name}_bits"
    if bits not in places:
        lines.insert(places[name] + 1, Line(f"const auto {bits} = {load.group(2)};", bits))
    return f"{target} = {bits};"


def _is_one(code: str) -> bool:
    """Is it one expression, and not two between brackets that belong to them?"""
    depth = [code[: k + 1].count("(") - code[: k + 1].count(")") for k in range(len(code))]
    return min(depth, default=0) >= 0
