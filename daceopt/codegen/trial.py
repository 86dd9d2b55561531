"""Runs a built program on NumPy arrays for checks: what it must write is poisoned, and guards stand around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from daceopt.errors import RunError
from daceopt.runtime.executable import Executable

_GUARD = 4096  # bytes before and after each block: a result that is a few rows too long stays inside
_POISON = 0xFF  # as floats NaN, as signed integers -1


@dataclass(frozen=True)
class Trial:
    """What one run left: outputs by role, and the saved block (None where the program has none)."""

    outputs: dict[str, np.ndarray]
    saved: np.ndarray | None


class Block:
    """Poisoned bytes between guards."""

    def __init__(self, size: int, what: str):
        self._memory = np.full(size + 2 * _GUARD + 64, _POISON, np.uint8)
        start = _GUARD + (-self._memory.ctypes.data - _GUARD) % 64
        self.bytes = self._memory[start : start + size]
        self.address = self._memory.ctypes.data + start
        self._around = (self._memory[:start], self._memory[start + size :])
        self._what = what

    def check(self) -> None:
        """Raise RunError when a guard was written."""
        if any((part != _POISON).any() for part in self._around):
            raise RunError(f"the program wrote outside of {self._what}, a block of {self.bytes.size} bytes")


def run(
    executable: Executable, given: Mapping[str, np.ndarray], saved: np.ndarray | None = None, seed: int = 0
) -> Trial:
    """Run ``executable`` on arrays by role (``input:0``, ``grad:1``); ``saved`` is the block that a forward run left.

    Raises RunError where the program writes outside of its outputs, its arena or its saved block.
    """
    manifest = executable.manifest
    symbols = tuple(given[s.input].shape[s.axis] for s in manifest.symbols)
    sizes = executable.sizes(symbols)
    inputs = {t.name: np.ascontiguousarray(given[t.name]) for t in manifest.inputs}
    outputs = [
        Block(prod(shape) * np.dtype(t.dtype).itemsize, f"output {t.name}")
        for t, shape in zip(manifest.outputs, sizes.shapes, strict=True)
    ]
    over = {t.in_place: b for t, b in zip(manifest.outputs, outputs) if t.in_place is not None}
    for name, each in over.items():
        each.bytes[...] = inputs[name].reshape(-1).view(np.uint8)
    arena, block = Block(sizes.arena, "its arena"), Block(sizes.saved, "its saved block")
    if saved is not None:
        block.bytes[...] = saved
    seeds = np.full(1, seed, np.int64)
    addresses = [over[n].address if n in over else a.ctypes.data for n, a in inputs.items()]
    addresses += [a.ctypes.data for a in executable.constants]
    addresses += [b.address for b in outputs]
    executable.run([*addresses, block.address, arena.address, seeds.ctypes.data], symbols)
    for each in (*outputs, arena, block):
        each.check()
    arrays = (
        b.bytes.view(np.dtype(t.dtype)).reshape(shape)
        for b, t, shape in zip(outputs, manifest.outputs, sizes.shapes, strict=True)
    )
    results = {t.name: a for t, a in zip(manifest.outputs, arrays, strict=True)}
    return Trial(results, block.bytes if manifest.saves else None)
