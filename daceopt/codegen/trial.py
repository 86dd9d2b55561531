"""Runs a built program on NumPy arrays for checks: what it must write is poisoned, guards are around all that it is
given. Blocks are where the program runs, on the host or on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from daceopt.errors import RunError
from daceopt.runtime.device_entry import entry_of, place_of
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
    """Poisoned bytes on a device between guards of ``around``."""

    def __init__(self, size: int, what: str, device: torch.device, around: int = _UNTOUCHED):
        self._memory = torch.full((size + 2 * _GUARD + 64,), around, dtype=torch.uint8, device=device)
        start = _GUARD + (-self._memory.data_ptr() - _GUARD) % 64
        self._inside = self._memory[start : start + size]
        self.address = self._memory.data_ptr() + start
        self._inside.fill_(_POISON)
        self._guards = (self._memory[:start], self._memory[start + size :])
        self._guard = around
        self._what = what

    def fill(self, array: np.ndarray) -> None:
        """Let the block hold the bytes of ``array``, which are as many."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._inside.copy_(torch.from_numpy(flat if flat.flags.writeable else flat.copy()))

    def bytes(self) -> np.ndarray:
        """What it holds now; on the host the memory itself."""
        return self._inside.cpu().numpy()

    def check(self) -> None:
        """Raise RunError when a guard was written."""
        if any(bool((part != self._guard).any()) for part in self._guards):
            raise RunError(f"the program wrote outside of {self._what}, a block of {self._inside.numel()} bytes")


class _Input(Block):
    """A copy of an array, which the program may not write; what it reads beyond is poison."""

    def __init__(self, array: np.ndarray, what: str, device: torch.device):
        super().__init__(array.nbytes, what, device, _POISON)
        self.fill(array)
        self._given = self._inside.clone()

    def check(self) -> None:
        super().check()
        if not torch.equal(self._inside, self._given):
            raise RunError(f"the program wrote to {self._what}")


def run(
    executable: Executable, values: Mapping[str, np.ndarray], saved: np.ndarray | None = None, seed: int = 0
) -> Trial:
    """Run ``executable`` on arrays by role (``input:0``, ``grad:1``); ``saved`` is the block that a forward run left.
    A program for a device runs on the current one, and what it computes is waited for.

    Raises RunError where the program writes outside of its outputs, its arena or its saved block, and to an input that
    none of its outputs replaces; EarlierCallFailed for what kernels of a device report.
    """
    manifest, device = executable.manifest, place_of(executable.manifest, ())
    symbols = tuple(values[s.input].shape[s.axis] for s in manifest.symbols)
    sizes = executable.sizes(symbols)
    outputs = [
        Block(prod(shape) * np.dtype(t.dtype).itemsize, f"output {t.name}", device)
        for t, shape in zip(manifest.outputs, sizes.shapes, strict=True)
    ]
    over = {t.in_place: b for t, b in zip(manifest.outputs, outputs) if t.in_place is not None}
    for name, each in over.items():
        each.fill(values[name])
    inputs = {t.name: over.get(t.name) or _Input(values[t.name], t.name, device) for t in manifest.inputs}
    arena, block = Block(sizes.arena, "its arena", device), Block(sizes.saved, "its saved block", device)
    if saved is not None:
        block.fill(saved)
    seeds = torch.full((1,), seed, dtype=torch.int64, device=device)
    entry = entry_of(executable).place([])
    addresses = [*(b.address for b in inputs.values()), *entry.constants, *(b.address for b in outputs)]
    executable.run([*addresses, block.address, arena.address, seeds.data_ptr(), *entry.stream()], symbols)
    entry.wait()
    for each in (*outputs, arena, block, *inputs.values()):
        each.check()
    arrays = (
        b.bytes().view(np.dtype(t.dtype)).reshape(shape)
        for b, t, shape in zip(outputs, manifest.outputs, sizes.shapes, strict=True)
    )
    results = {t.name: a for t, a in zip(manifest.outputs, arrays, strict=True)}
    return Trial(results, block.bytes() if manifest.saves else None)
