"""Runs a built program on NumPy arrays for checks: what it must write is poisoned, guards stand around all that it is
given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from daceopt.errors import RunError
from daceopt.runtime.executable import Executable

_GUARD = 4096  # bytes before and after each block: a result that is a few rows too long stays inside
_POISON = 0xFF  # as floats NaN, as signed integers -1
# What is read beyond an input is poison, and passes through arithmetic unchanged: a guard of it would not show that it
# was written. This is no NaN in any type.
_UNTOUCHED = 0xA5


@dataclass(frozen=True)
class Trial:
    """What one run left: outputs by role, and the saved block (None where the program has none)."""

    outputs: dict[str, np.ndarray]
    saved: np.ndarray | None


class Block:
    """Poisoned bytes between guards of ``around``."""

    def __init__(self, size: int, what: str, around: int = _UNTOUCHED):
        self._memory = np.full(size + 2 * _GUARD + 64, around, np.uint8)
        start = _GUARD + (-self._memory.ctypes.data - _GUARD) % 64
        self.bytes = self._memory[start : start + size]
        self.address = self._memory.ctypes.data + start
        self.bytes[...] = _POISON
        self._guards = (self._memory[:start], self._memory[start + size :])
        self._guard = around
        self._what = what

    def check(self) -> None:
        """Raise RunError when a guard was written."""
        if any((part != self._guard).any() for part in self._guards):
            raise RunError(f"the program wrote outside of {self._what}, a block of {self.bytes.size} bytes")


class _Input(Block):
    """A copy of an array, which the program may not write; what it reads beyond is poison."""

    def __init__(self, array: np.ndarray, what: str):
        super().__init__(array.nbytes, what, _POISON)
        self._given = _bytes(array)
        self.bytes[...] = self._given

    def check(self) -> None:
        super().check()
        if not np.array_equal(self.bytes, self._given):
            raise RunError(f"the program wrote to {self._what}")


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def run(
    executable: Executable, given: Mapping[str, np.ndarray], saved: np.ndarray | None = None, seed: int = 0
) -> Trial:
    """Run ``executable`` on arrays by role (``input:0``, ``grad:1``); ``saved`` is the block that a forward run left.

    Raises RunError where the program writes outside of its outputs, its arena or its saved block, and to an input that
    none of its outputs replaces.
    """
    manifest = executable.manifest
    symbols = tuple(given[s.input].shape[s.axis] for s in manifest.symbols)
    sizes = executable.sizes(symbols)
    outputs = [
        Block(prod(shape) * np.dtype(t.dtype).itemsize, f"output {t.name}")
        for t, shape in zip(manifest.outputs, sizes.shapes, strict=True)
    ]
    over = {t.in_place: b for t, b in zip(manifest.outputs, outputs) if t.in_place is not None}
    for name, each in over.items():
        each.bytes[...] = _bytes(given[name])
    inputs = {t.name: over.get(t.name) or _Input(given[t.name], t.name) for t in manifest.inputs}
    arena, block = Block(sizes.arena, "its arena"), Block(sizes.saved, "its saved block")
    if saved is not None:
        block.bytes[...] = saved
    seeds = np.full(1, seed, np.int64)
    addresses = [b.address for b in inputs.values()]
    addresses += [a.ctypes.data for a in executable.constants]
    addresses += [b.address for b in outputs]
    executable.run([*addresses, block.address, arena.address, seeds.ctypes.data], symbols)
    for each in (*outputs, arena, block, *inputs.values()):
        each.check()
    arrays = (
        b.bytes.view(np.dtype(t.dtype)).reshape(shape)
        for b, t, shape in zip(outputs, manifest.outputs, sizes.shapes, strict=True)
    )
    results = {t.name: a for t, a in zip(manifest.outputs, arrays, strict=True)}
    return Trial(results, block.bytes if manifest.saves else None)
