"""Counter-based random numbers in NumPy, bit for bit those of ``codegen/include/daceopt/scalar.h``.

Philox2x32 with seven rounds (Salmon et al., 2011). With ``element`` an int64, ``node`` an int32 and ``seed`` an int64:

- counter ``c0 = low32(element)``, ``c1 = high32(element) ^ node``
- key ``k = low32(z ^ (z >> 32))`` where, modulo 2**64, ``z = seed * 0x9E3779B97F4A7C15`` and then
  ``z = (z ^ (z >> 33)) * 0xFF51AFD7ED558CCD``
- seven times: ``p = 0xD256D193 * c0`` (64 bits); ``c0, c1 = high32(p) ^ k ^ c1, low32(p)``; ``k += 0x9E3779B9``
- the result is ``(c0 >> 8) * 2**-24``, a float32 in [0, 1)
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 7
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def uniform(seed: int | np.ndarray, node: int | np.ndarray, element: int | np.ndarray) -> np.ndarray:
    """float32 in [0, 1) for every ``element`` (int64, any shape), keyed by ``seed`` and ``node``."""
    element = np.asarray(element, dtype=np.int64).astype(np.uint64)
    key = _key(np.asarray(seed, dtype=np.int64).astype(np.uint64))
    c0 = element & _MASK
    c1 = (element >> _HALF) ^ (np.asarray(node, dtype=np.int64).astype(np.uint64) & _MASK)
    for _ in range(_ROUNDS):
        product = c0 * np.uint64(0xD256D193)
        c0, c1 = (product >> _HALF) ^ key ^ c1, product & _MASK
        key = (key + np.uint64(0x9E3779B9)) & _MASK
    return ((c0 >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)


def _key(seed: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = seed * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    return (z ^ (z >> _HALF)) & _MASK
