"""A pool of large memory blocks that tensors borrow, so that a training step touches no fresh page.

A block is free when nobody but the pool owns its storage: every tensor, view, saved tensor, numpy array or DLPack
capsule counts as an owner, so a block that anything can still read is never handed out.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from daceopt.runtime.strides import row_major
from daceopt.torch_internals.cuda_state import empty_strided_cpu, storage_use_count

THRESHOLD = 256 * 1024
"""Tensors of fewer bytes come from PyTorch's allocator: below this, page faults cost less than the pool."""

_HUGE_PAGE = 2 * 1024 * 1024
_SWEEP_EVERY = 64


def allocate(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """An uninitialised dense CPU tensor, without ``strides`` in rows; from the pool when it is large. It belongs to the
    caller alone.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < THRESHOLD:
        return _fresh(shape, dtype, strides)
    return _pool.tensor(shape, dtype, nbytes, strides)


def _fresh(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None) -> torch.Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


def allocator(
    shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None
) -> Callable[[], torch.Tensor]:
    """:func:`allocate` of this shape and type, again and again: small tensors by the function by which Inductor's code
    allocates, which takes no dispatcher and half the time.
    """
    if math.prod(shape) * dtype.itemsize >= THRESHOLD:
        return partial(allocate, shape, dtype, strides)
    return partial(empty_strided_cpu, shape, row_major(shape) if strides is None else strides, dtype)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """A dense CPU tensor of zeros, to read alone: pages that nobody has written are one for all, so that they take no
    memory, and are read from the caches."""
    memory = torch.from_numpy(np.zeros((math.prod(shape) or 1) * dtype.itemsize, np.uint8)).view(dtype)
    return memory.as_strided(shape, row_major(shape) if strides is None else strides)


def stats() -> dict[str, int]:
    """Numbers of blocks and bytes held, bytes now free, and how many requests the pool met (`hits`) or not
    (`misses`).
    """
    return _pool.stats()


def empty() -> int:
    """Give every free block back to the system; returns the number of bytes given back."""
    return _pool.release_free()


class _Block:
    """One storage that the pool owns, with what its ownership looks like when nobody else holds it."""

    __slots__ = ("address", "base", "handle", "idle", "last_used", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.base = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        self.nbytes = nbytes
        self.address = self.base.data_ptr()
        self.handle = self.base.untyped_storage()._cdata
        self.last_used = 0
        self.idle = self._owners()
        _advise_huge_pages(self.address, nbytes)

    def _owners(self) -> tuple[int, int]:
        # The Python wrapper of a storage is one object; holding only that does not add to the native count.
        storage = self.base.untyped_storage()
        return storage_use_count(self.handle), sys.getrefcount(storage)

    def is_free(self) -> bool:
        return self._owners() == self.idle

    def is_intact(self) -> bool:
        """False after a borrower resized the storage, moved it to shared memory, or exported it to numpy."""
        storage = self.base.untyped_storage()
        return storage.data_ptr() == self.address and storage.nbytes() == self.nbytes and storage.resizable()


class _Pool:
    """Blocks by size class; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[int, list[_Block]] = {}
        self._clock = 0
        self._hits = 0
        self._misses = 0
        self._limit = _physical_memory() // 2

    def tensor(
        self, shape: tuple[int, ...], dtype: torch.dtype, nbytes: int, strides: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        placed = (0, shape) if strides is None else (0, shape, strides)
        with self._lock:
            block = self._acquire(_size_class(nbytes))
            # set_ makes a tensor of its own (no view, own version counter) and must happen before the lock is released.
            return torch.empty(0, dtype=dtype, device="cpu").set_(block.base.untyped_storage(), *placed)

    def _acquire(self, size: int) -> _Block:
        self._clock += 1
        if self._clock % _SWEEP_EVERY == 0:
            self._sweep()
        block = self._find(size)
        if block is None:
            self._misses += 1
            self._make_room(size)
            block = _Block(size)
            self._blocks.setdefault(size, []).append(block)
        else:
            self._hits += 1
        block.last_used = self._clock
        return block

    def _find(self, size: int) -> _Block | None:
        blocks = self._blocks.get(size, [])
        for block in reversed(blocks):
            if not block.is_free():
                continue
            if block.is_intact():
                return block
            blocks.remove(block)
            return self._find(size)
        return None

    def _sweep(self) -> None:
        """Drop free blocks that lay unused while every other block could have been used many times."""
        count = sum(len(blocks) for blocks in self._blocks.values())
        horizon = self._clock - 16 * count - 4 * _SWEEP_EVERY
        self._drop([b for b in self._free() if b.last_used < horizon])

    def _make_room(self, nbytes: int) -> None:
        excess = self._held_bytes() + nbytes - self._limit
        for block in sorted(self._free(), key=lambda b: b.last_used) if excess > 0 else ():
            if excess <= 0:
                return
            self._drop([block])
            excess -= block.nbytes

    def _free(self) -> list[_Block]:
        return [b for blocks in self._blocks.values() for b in blocks if b.is_free()]

    def _held_bytes(self) -> int:
        return sum(b.nbytes for blocks in self._blocks.values() for b in blocks)

    def _drop(self, blocks: list[_Block]) -> None:
        identities = {id(b) for b in blocks}
        for size in {b.nbytes for b in blocks}:
            self._blocks[size] = [b for b in self._blocks[size] if id(b) not in identities]

    def release_free(self) -> int:
        with self._lock:
            blocks = self._free()
            self._drop(blocks)
            return sum(b.nbytes for b in blocks)

    def stats(self) -> dict[str, int]:
        with self._lock:
            return {
                "blocks": sum(len(blocks) for blocks in self._blocks.values()),
                "bytes": self._held_bytes(),
                "free_bytes": sum(b.nbytes for b in self._free()),
                "hits": self._hits,
                "misses": self._misses,
            }

    def after_fork(self) -> None:
        # Another thread of the parent may have held the lock; the child's blocks are private copies and stay valid.
        self._lock = threading.Lock()


def _size_class(nbytes: int) -> int:
    """`nbytes` rounded up by at most one eighth, so that nearly equal sizes share blocks."""
    step = max(1 << (nbytes.bit_length() - 4), 64 * 1024)
    return -(-nbytes // step) * step


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _advise_huge_pages(address: int, nbytes: int) -> None:
    start = -(-address // _HUGE_PAGE) * _HUGE_PAGE
    length = (address + nbytes - start) // _HUGE_PAGE * _HUGE_PAGE
    if length <= 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    madvise: Any = ctypes.CDLL(None).madvise
    # Advice only: a kernel without huge pages refuses, and the block works all the same.
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)


_pool = _Pool()
os.register_at_fork(after_in_child=_pool.after_fork)
